"""One meaning per word: of programs nobody says, tells or hears anything, and no two classes share a name."""

import ast
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
KEPT = {
    "told",  # by pods, of a SIGTERM: a stored value, in `clusters/runai/phases.py`
    "Times as people say them.",
}
"""What is of people, or is stored so."""


def parsed(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_texts_of_programs_log_print_and_name() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {found[0]}"
        for folder in (PACKAGE, ROOT / "trainer")
        for path, module in parsed(folder)
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in KEPT
        for found in [OF_PEOPLE.search(NAMES.sub("", node.value))]
        if found
    ]
    assert not wrong, "write logs, prints, reports, states, names, has or shows:\n" + "\n".join(wrong)


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for path, module in parsed(PACKAGE):
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
