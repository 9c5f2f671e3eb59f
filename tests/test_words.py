"""Words of docstrings, messages and names: one meaning each, and sentences that a reader takes in once."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "plugins" / "steptime"
OF_PEOPLE = re.compile(
    r"\b(tell|tells|told|say|says|said|saying|hear|hears|heard|speak|speaks|spoken)\b", re.IGNORECASE
)
NAMES = re.compile(r"`[^`]*`|\$?\bsaid\b(?==|\")")
"""What is quoted, and a variable of job scripts."""
PROPERTIES = {"property", "cached_property", "functools.cached_property"}
NO_PLACE = re.compile(
    r"\b(?:None|False|True|empty|nothing|none|[Nn]o error|only|[Aa]lso|as|fails|Raises? \w+) where\b"
)
"""A condition: "where" is for places."""
FRAGMENT = re.compile(
    r"(?:The|An?|What|Whether|Which|How|Where|When|Why|Those|These|Its|Each|Every|Everything|All|One|Of|None)\b"
)
"""How a phrase begins that is no sentence about what a function does."""
OF_THE_PLAN = {
    *("HybridShape", "LatentAttention", "ModelShape", "MoeShape", "NemoConfig", "Parallelism", "Performance"),
    *("ProfileWindow", "Recipe"),
}
"""Parts of `run.json`: the trainer, in an environment of its own, reads what `recipes` has written."""
KEPT = {
    "told",  # by pods, of a SIGTERM: a stored value, in `clusters/runai/phases.py`
    "Times as people say them.",
}
"""What is of people, or is stored so."""
PRINTED = " but it says: "
"""In a drill's outcome, as it was printed."""


@functools.cache
def parsed(folder: Path) -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(folder.rglob("*.py"))]


@functools.cache
def texts() -> list[tuple[str, str]]:
    """Each text of the code, docstrings included, behind its place."""
    return [
        (f"{name}:{node.lineno}", " ".join(node.value.split()))
        for folder in (PACKAGE, ROOT / "trainer")
        for path, module in parsed(folder)
        for name in [path.relative_to(ROOT)]
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def pages() -> Iterator[tuple[str, str]]:
    """Each line of the documentation, behind its place; `STATUS.md` and decisions report what was then."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        if path.name != "STATUS.md":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                yield f"{path.relative_to(ROOT)}:{number}", line


def test_texts_of_programs_log_print_and_name() -> None:
    wrong = [
        f"{place}: {found[0]}"
        for place, text in (*texts(), *pages())
        if text not in KEPT and PRINTED not in text
        for found in [OF_PEOPLE.search(NAMES.sub("", text))]
        if found
    ]
    assert not wrong, "write logs, prints, reports, states, names, has or shows:\n" + "\n".join(wrong)


def test_where_is_for_places() -> None:
    wrong = [
        f"{place}: {found[0]}"
        for place, text in (*texts(), *pages())
        for found in [NO_PLACE.search(text)]
        if found
    ]
    assert not wrong, "write if, when or because:\n" + "\n".join(wrong)


def test_docstrings_of_public_functions_are_sentences() -> None:
    """In the imperative or the plain present; a property is named by a noun."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {text.splitlines()[0]}"
        for path, module in (*parsed(PACKAGE), *parsed(ROOT / "trainer"))
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if not node.name.startswith("_")
        and not PROPERTIES & {ast.unparse(one) for one in node.decorator_list}
        for text in [ast.get_docstring(node) or ""]
        if FRAGMENT.match(text)
    ]
    assert not wrong, "begin with a verb, as in Return …:\n" + "\n".join(wrong)


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for folder in (PACKAGE, ROOT / "trainer"):
        for path, module in parsed(folder):
            for node in module.body:
                if isinstance(node, ast.ClassDef):
                    found[node.name.lstrip("_")].append(path)
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    mirrored = {name for name, (planned, *read) in twice.items() if planned.parent.name == "recipes" and read}
    assert mirrored == OF_THE_PLAN
    assert {name: paths for name, paths in twice.items() if name not in OF_THE_PLAN} == {}
