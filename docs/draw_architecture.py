"""Write picture and tables of docs/architecture.md from the code: `python docs/draw_architecture.py`.

`--sizes` prints files, lines and imported rooms of each room instead. `--passes` follows one DAG run, writes
into the page how many modules of each room it passes, and prints it; the path of another checkout behind it
counts there and writes nothing, and is to be called with the Python of that checkout's environment.
"""

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "plugins" / "steptime"
PAGE = Path(__file__).with_name("architecture.md")
BEGIN, END = "<!-- drawn -->\n", "<!-- end of what is drawn -->\n"
COUNTED, END_OF_COUNTED = "<!-- counted -->\n", "<!-- end of what is counted -->\n"
BESIDE, TRAINER, ALL = "beside the rooms", "trainer/", "all"
BEFORE: Mapping[str, tuple[int, int, int | None]] = {
    "recipes": (19, 2876, 15),
    "clusters": (39, 5583, 11),
    "logs": (21, 1636, 14),
    "staging": (10, 1180, 1),
    "results": (18, 2357, 12),
    "web": (2, 134, 0),
    "airflow": (30, 3824, 21),
    "cli": (17, 1826, 0),
    BESIDE: (6, 205, 4),
    ALL: (162, 19621, 78),
    TRAINER: (45, 3801, None),
}
"""Files, lines and modules passed at 1f65a9a, of the rooms that there were."""
ONCE_IN = {"mini_slurm": "clusters", "tracking": "airflow", "service": "airflow"}


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


def drawn(text: str) -> str:
    """The text of the page with today's picture and table of rooms."""
    edges = neighbours()
    return _between(text, BEGIN, END, picture(edges) + "\n" + table(edges))


def counted(text: str, passed: Mapping[str, int]) -> str:
    """The text of the page with today's sizes, and how many modules a DAG run passes of each room."""
    lines = [
        "| room | files before | now | lines before | now | passed before | now |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for room, now in counts().items():
        name = f"`{room}`" + (f" (was in `{ONCE_IN[room]}`)" if room in ONCE_IN else "")
        before = BEFORE.get(room, ("", "", ""))
        cells = [one for pair in zip(before, (*now, passed.get(room, "")), strict=True) for one in pair]
        row = ["" if one is None else f"{one:,}" if isinstance(one, int) else one for one in cells]
        lines.append(f"| {' | '.join([room if room in (BESIDE, ALL) else name, *row])} |")
    return _between(text, COUNTED, END_OF_COUNTED, "\n".join([*lines, ""]))


def written(text: str) -> dict[str, tuple[int | None, ...]]:
    """Files, lines and modules passed of each room, as the page has them of now."""
    rows = text.partition(COUNTED)[2].partition(END_OF_COUNTED)[0].splitlines()[2:]
    cells = [[cell.strip().replace(",", "") for cell in row.strip("|").split("|")] for row in rows]
    return {
        name.split(" (")[0].strip("`"): tuple(int(one) if one else None for one in numbers[1::2])
        for name, *numbers in cells
    }


def _between(text: str, begin: str, end: str, content: str) -> str:
    before, _, rest = text.partition(begin)
    return before + begin + content + end + rest.partition(end)[2]


def counts() -> dict[str, tuple[int, int]]:
    """Files and lines of Python of each room, of what is beside them, of all of that, and of the trainer."""
    found = {room: _count((PACKAGE / room).rglob("*.py")) for room in rooms()}
    found[BESIDE] = _count(PACKAGE.glob("*.py"))
    found[ALL] = _count(PACKAGE.rglob("*.py"))
    found[TRAINER] = _count((ROOT / "trainer").rglob("*.py"))
    return found


def _count(files: Iterable[Path]) -> tuple[int, int]:
    lines = [len(file.read_text(encoding="utf-8").splitlines()) for file in files]
    return len(lines), sum(lines)


def sizes() -> str:
    """Files and lines of Python of each room, and how many rooms it imports."""
    edges = neighbours()
    lines = [f"{'room':<18}{'files':>6}{'lines':>8}{'imports':>9}"]
    for room, (files, count) in counts().items():
        lines.append(f"{room:<18}{files:>6}{count:>8,}{len(edges.get(room, ())):>9}")
    return "\n".join(lines)


_DAG_RUN = "tests/airflow/test_dag_run.py::test_performance_runs_and_a_checkpoint_pair_are_published"
# A pytest plugin: while the test itself runs, the modules are noted of which a function is called.
_TRACING = """
import os, sys, threading
import pytest
seen = set()
def called(frame, event, argument):
    file = frame.f_code.co_filename
    if file.startswith(os.environ["PASSES_PACKAGE"]) and frame.f_code.co_name != "<module>":
        seen.add(file)
@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    threading.settrace(called)
    sys.settrace(called)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        with open(os.environ["PASSES_FILE"], "w") as file:
            file.write(os.linesep.join(seen))
"""


def passes(checkout: Path) -> dict[str, int]:
    """How many modules of each room a DAG run passes: those of which it calls a function.

    The DAG run is of two scales and a checkpoint pair, from its params to its report, on the local cluster.
    All its tasks run in one process, and only that counts. A stand-in trains, and nothing is staged. A module
    of which only a class or a constant is used is not passed.

    Raises CalledProcessError where the DAG run fails.
    """
    package = checkout / "plugins" / "steptime"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "passes_tracing.py").write_text(_TRACING, encoding="utf-8")
        seen = Path(folder, "seen")
        path = os.pathsep.join(map(str, (folder, checkout / "plugins", checkout)))
        traced = {"PASSES_PACKAGE": str(package), "PASSES_FILE": str(seen), "PYTHONPATH": path}
        plugins = ["-p", "passes_tracing", "-p", "no:xdist", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-q", *plugins, _DAG_RUN]
        subprocess.run(command, cwd=checkout, env=os.environ | traced, check=True, stdout=sys.stderr)
        modules = [Path(path).relative_to(package) for path in seen.read_text(encoding="utf-8").splitlines()]
    found = Counter(_room_of(module) for module in modules)
    return {**{room: found[room] for room in (*rooms(), BESIDE)}, ALL: found.total()}


def _room_of(module: Path) -> str:
    """The room of a module, by its path below the package; those beside the rooms belong to none."""
    return module.parts[0] if len(module.parts) > 1 else BESIDE


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
    match sys.argv[1:]:
        case ["--sizes"]:
            print(sizes())
        case ["--passes", *checkout]:
            found = passes(Path(*checkout or [str(ROOT)]).resolve())
            if not checkout:
                PAGE.write_text(counted(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
            print("\n".join(f"{room:<18}{number:>6}" for room, number in found.items()))
        case _:
            text = PAGE.read_text(encoding="utf-8")
            passed = {room: last for room, (*_, last) in written(text).items() if last is not None}
            PAGE.write_text(counted(drawn(text), passed), encoding="utf-8")
