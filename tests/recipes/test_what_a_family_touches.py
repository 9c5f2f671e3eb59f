"""The page's list of what a family touches, held to the families that are shipped."""

import re
from pathlib import Path

import pytest
import yaml
from printed_tables import by_name, configuration_rows

from steptime.recipes.workloads import list_workloads, load_workload

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-workload.md").read_text(encoding="utf-8")
OF_FAMILIES = (
    *("config/**/*.*", "dags/*.py", "docs/published-numbers.md"),
    *("tests/data/megatron_bridge/*.*", "tests/golden/scripts/*.sh", "tests/upstream/releases.py"),
)
"""What is written for families: a file of these that names one is touched by it."""
TEXTS = {
    str(path.relative_to(ROOT)): f"{path.name}\n{path.read_text(encoding='utf-8')}"
    for pattern in OF_FAMILIES
    for path in ROOT.glob(pattern)
}
SHIPPED = sorted({row.recipe for row in configuration_rows()})
"""The workloads of public documents."""


def listed(name: str, *rows: str) -> set[str]:
    """What the page lists for a family, in all rows or in those that have one of these texts."""
    section = PAGE.partition("## What a family touches")[2].partition("## The fields")[0]
    lines = [line for line in section.splitlines() if not rows or any(row in line for row in rows)]
    paths = re.findall(r"`((?:config|dags|docs|tests)/\S+)`", "\n".join(lines))
    assert paths, rows
    dag_id = load_workload(name).dag_id
    return {path.replace("<family>-<release>", name).replace("<dag_id>", dag_id) for path in paths}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_family_touches_no_other_file(name: str) -> None:
    as_a_word = re.compile(rf"{re.escape(name)}(?![\w.])")
    touched = {path for path, text in TEXTS.items() if as_a_word.search(text)}
    assert {path for path in touched if not path.startswith(tuple(listed(name)))} == set()


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_listed_for_all_that_are_shipped_names_a_family(name: str) -> None:
    kind = "a recipe by name" if by_name(name) else "by steptime's trainer"
    for path in listed(name, "| always |", "| it is to be shipped", f"| it is shipped, and {kind}"):
        texts = [text for file, text in TEXTS.items() if file.startswith(path)]
        assert texts, path
        if not path.startswith(("dags/", "config/upstream/differences")):  # by its family; where one differs
            assert any(name in text for text in texts), path


def test_the_formulas_on_the_page_are_those_that_families_use() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(r"^\| `([\w.-]+)` \| (.+?) \| .+ \|$", page.partition("| used by |")[2], re.MULTILINE)
    )
    used: dict[str, list[str]] = {}
    for name in list_workloads():
        used.setdefault(load_workload(name).flops_formula, []).append(name)
    formulas = yaml.safe_load(TEXTS["config/flops.yaml"].partition("\n")[2])
    by_hand = {"megatron-bridge": "all [recipes by name](adding-a-workload.md#what-is-there)"}
    assert {name: rows[name] for name in formulas} == {
        name: by_hand.get(name) or ", ".join(sorted(used.get(name, ["no shipped workload"])))
        for name in formulas
    }
    assert all(map(by_name, used["megatron-bridge"]))
