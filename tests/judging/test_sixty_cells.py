"""Half a year of 60 cells: the command line and the report name what is planted, and nothing else."""

import json
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sixty_cells import (
    ACCEPTED,
    BELOW,
    DRIFT,
    NOISY,
    SCALED,
    SEEDS,
    STEP,
    WEEK_S,
    WEST_CHANGE,
    StoresOf,
    cells,
    named,
    planted,
)
from typer.testing import CliRunner

from steptime.cli import app
from steptime.judging.comparison import compare_since
from steptime.judging.findings import Comparison, Finding
from steptime.results.store import Store

pytestmark = pytest.mark.slow

MANY_SEEDS = range(40)


def week(url: str) -> Comparison:
    """What *This week* has of a store."""
    return compare_since(Store(url), time.time() - WEEK_S)


def by_cell(compared: Comparison) -> dict[str, Finding]:
    found = dict(zip(compared.names, compared.findings, strict=True))
    assert found.keys() == cells().keys()
    return found


@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in SEEDS[1:])]
)
def test_exactly_what_is_planted_is_named(sixty_cells: StoresOf, seed: int) -> None:
    stores = sixty_cells(seed)
    assert named(week(stores.unchanged).rows) == set()
    assert named(week(stores.planted).rows) == planted(stores)


def test_what_is_named_has_its_reason(sixty_cells: StoresOf) -> None:
    stores = sixty_cells(SEEDS[0])
    compared = week(stores.planted)
    found, rows = by_cell(compared), {row["cell"]: row for row in compared.rows}

    by_cause = {cause.name: cause for cause in compared.causes}
    assert {series["cluster"] for series in by_cause[WEST_CHANGE].cells} == {"west"}
    assert {series["cluster"] for series in by_cause[f"node {stores.bad_node}"].cells} == {"east"}
    assert (found[STEP].verdict, found[STEP].standing.state) == ("slower", "confirmed")
    assert found[STEP].changes[0] == "NVTE_FUSED_ATTN 1 → 0"
    assert found[DRIFT].drift is not None
    assert {found[cell].verdict for cell in (ACCEPTED, NOISY)} == {"unchanged"}
    assert found[NOISY].standing.against.minimum_detectable_change > 0.1
    below = {cell for cell, row in rows.items() if row["against_publication"] == "below"}
    assert {BELOW, ACCEPTED} <= below
    assert rows["70b·bf16·2048·checkpoint load"]["against_publication"] is None


@pytest.mark.parametrize(("name", "exit_code"), [("planted", 3)])
def test_compare_as_a_process_and_the_report_name_the_same(
    sixty_cells: StoresOf, name: str, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = sixty_cells(SEEDS[0])
    monkeypatch.setenv("STEPTIME_STORE_URL", getattr(stores, name))
    wanted = planted(stores) if name == "planted" else set()

    program = Path(sys.executable).with_name("steptime")
    compare = [program, "results", "compare", "--format", "json"]
    done = subprocess.run(compare, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (exit_code, "")
    compared = json.loads(done.stdout)
    assert named(compared["cells"]) == wanted
    assert compared["took"].startswith("60 cells · ")

    CliRunner().invoke(app, ["report", "-o", str(tmp_path / "week.html")], catch_exceptions=False)
    text = (tmp_path / "week.html").read_text()
    assert f'<p class="sentence">{compared["sentence"]}.</p>' in text
    assert named(first_table(text)) == wanted
    assert text.count("<figure") == 60 + len(SCALED), "a trend of each cell, and how each model scales"


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_of_many_seeds_few_err(sixty_cells: StoresOf) -> None:
    wrong, missed, alarmed = [], [], []
    for seed in MANY_SEEDS:
        stores = sixty_cells(seed)
        found, wanted = named(week(stores.planted).rows), planted(stores)
        wrong += sorted(found - wanted)
        missed += sorted(wanted - found)
        alarmed += [seed] if named(week(stores.unchanged).rows) else []
    assert len(alarmed) <= len(MANY_SEEDS) / 8, alarmed
    assert len(missed) <= len(MANY_SEEDS) / 8, missed
    assert len(wrong) <= len(MANY_SEEDS) / 8, wrong


class _Table(HTMLParser):
    """The first table of a page, as lists of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.ended = False

    def handle_starttag(self, tag: str, _attributes: Any) -> None:
        if not self.ended and tag == "tr":
            self.rows.append([])
        elif not self.ended and tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and not self.ended:
            self.rows[-1][-1] += data.strip()

    def handle_endtag(self, tag: str) -> None:
        self.ended = self.ended or tag == "table"


def first_table(text: str) -> list[dict[str, str]]:
    """Its rows, by the headings without their units; a heading that is not there has no value."""
    table = _Table()
    table.feed(text)
    heads = [head.partition(",")[0] for head in table.rows[0]]
    rows = [dict(zip(heads, cells, strict=True)) for cells in table.rows[1:]]
    return [{"cause": "", "drift_percent": row.get("drift", "")} | row for row in rows]
