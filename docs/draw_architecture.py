"""Write the picture and the table of docs/architecture.md from the code: `python docs/draw_architecture.py`.

`--sizes` prints files, lines and imported rooms of each room instead.
"""

import ast
import sys
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "plugins" / "steptime"
PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- drawn -->\n", "<!-- end of what is drawn -->\n"


def rooms() -> list[str]:
    """The packages of steptime, each a room."""
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def neighbours() -> dict[str, set[str]]:
    """The rooms that each room imports, also inside functions."""
    graph = grimp.build_graph("steptime", include_external_packages=False)
    found: dict[str, set[str]] = {room: set() for room in rooms()}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            one, other = (name.split(".")[1] if "." in name else "" for name in (importer, imported))
            if one in found and other in found and one != other:
                found[one].add(other)
    return found


def may_be_imported_by() -> dict[str, list[str]]:
    """Who may import each room, as `.importlinter` says."""
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    return {
        section["protected_modules"].removeprefix("steptime."): [
            name.removeprefix("steptime.") for name in section["allowed_importers"].split()
        ]
        for section in map(contracts.__getitem__, contracts.sections())
        if section.get("type") == "protected"
    }


def purpose(room: str) -> str:
    """The first sentence of the room's docstring."""
    text = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def picture(edges: Mapping[str, Iterable[str]]) -> str:
    """A Mermaid drawing: an arrow from each room to those that it imports, but for those behind others."""
    lines = ["```mermaid", "flowchart TD"]
    lines += ["    dags[(dags/)] --> airflow"]
    for room in sorted(edges):
        behind = {far for near in edges[room] for far in _reached(near, edges)}
        lines += [f"    {room} --> {other}" for other in sorted(set(edges[room]) - behind)]
    lines += ['    clusters -. "run.json" .-> trainer[[trainer/]]', '    trainer -. "log" .-> logs', "```"]
    return "\n".join(lines) + "\n"


def table(edges: Mapping[str, Iterable[str]]) -> str:
    """A row for each room: what it is for, what it imports, and who may import it."""
    allowed = may_be_imported_by()
    lines = ["| room | what it is for | imports | may be imported by |", "|---|---|---|---|"]
    for room in sorted(edges, key=lambda room: (len(_reached(room, edges)), room)):
        imports, importers = ", ".join(sorted(edges[room])), ", ".join(allowed[room])
        lines.append(f"| `{room}` | {purpose(room)} | {imports or '-'} | {importers or '-'} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with today's picture and table."""
    edges = neighbours()
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + picture(edges) + "\n" + table(edges) + END + rest.partition(END)[2]


def sizes() -> str:
    """Files and lines of Python of each room, and how many rooms it imports."""
    edges = neighbours()
    lines = [f"{'room':<12}{'files':>6}{'lines':>7}{'imports':>9}"]
    folders = {**{room: PACKAGE / room for room in rooms()}, "trainer": ROOT / "trainer"}
    for room, folder in folders.items():
        files = list(folder.rglob("*.py"))
        count = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
        lines.append(f"{room:<12}{len(files):>6}{count:>7}{len(edges.get(room, ())):>9}")
    return "\n".join(lines)


def _reached(room: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    """All rooms that one comes to from this one."""
    found: set[str] = set()
    ahead = list(edges[room])
    while ahead:
        if (other := ahead.pop()) not in found:
            found.add(other)
            ahead += edges[other]
    return found


if __name__ == "__main__":
    if "--sizes" in sys.argv[1:]:
        print(sizes())
    else:
        PAGE.write_text(page(), encoding="utf-8")
