"""Does the log reader give the answers of another commit's? `python benchmarks/equal_answers.py COMMIT`.

Both read every log that the tests of `tests/logs` read, each line of `lines_by_release.yaml` a hundred times,
so that it is read by its shape, logs that are made up by seed (`tests/logs/generated_logs.py`), and a large
log of NCCL's tracing. `log_answers.py` has what they are asked.

Fields that only one of the readers has are named and not compared, and those that changed their names are
compared under the new ones. Differences are listed by field; the exit code is 1 if there are any.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any

import pytest

from bench import ROOT, checked_out
from made_logs import nemo, write_noisy

sys.path.insert(0, str(ROOT / "tests"))

from logs import line_forms
from logs.generated_logs import generated_log
from logs.upstream_lines import entries

from steptime.logs import reader

_RENAMED = {"dialect": "format"}
_REPEATS = 100
_LONGEST_SHOWN = 200

Contents = tuple[tuple[str, bytes], ...]
"""Names and bytes of the files of a run."""
_ABSENT = "(nothing)"


class Recorder:
    """A plugin of pytest that keeps the logs that tests read, each with its first test."""

    def __init__(self) -> None:
        self.logs: dict[Contents, str] = {}

    def pytest_configure(self) -> None:
        """Put what records before what reads; tests import it later."""
        read_chunks, read_log = line_forms.read_chunks, reader.read_log

        def read_pieces(chunks: Any, **plan: Any) -> Any:
            pieces = list(chunks)
            self._keep([("log-0.out", b"".join(pieces))])
            return read_chunks(pieces, **plan)

        def read_files(paths: Any, **plan: Any) -> Any:
            files = [Path(path) for path in (paths if isinstance(paths, list | tuple) else [paths])]
            self._keep(
                [(f"{at}-{file.name}", file.read_bytes()) for at, file in enumerate(files) if file.is_file()]
            )
            return read_log(paths, **plan)

        line_forms.read_chunks, reader.read_log = read_pieces, read_files

    def _keep(self, files: list[tuple[str, bytes]]) -> None:
        self.logs.setdefault(tuple(files), os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0])


def logs(seeds: int) -> Iterator[tuple[str, Contents]]:
    """The logs but for the large one, by their names."""
    recorder = Recorder()
    # The test of memory has a log like the large one, which it reads in another process.
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--ignore",
        str(ROOT / "tests/logs/test_memory.py"),
    ]
    if pytest.main([*options, str(ROOT / "tests" / "logs")], plugins=[recorder]):
        raise SystemExit("equal_answers: tests of logs fail, which stands above")
    for files, test in recorder.logs.items():
        yield test, files
    for entry in (*entries("lines"), *entries("public"), *entries("sequences")):
        lines = entry.get("lines") or [entry["line"]]
        text = "".join(f"{line}\n" for line in lines) * _REPEATS
        yield f"{_REPEATS} times {lines[0]}", (("log-0.out", text.encode()),)
    for seed in range(seeds):
        yield f"seed {seed}", (("log-0.out", generated_log(seed)),)


def write(folder: Path, megabytes: int, seeds: int) -> list[str]:
    """Write each log into a folder of its own; their names, in the order of these folders."""
    names: list[str] = []

    def place(name: str) -> Path:
        run = folder / f"{len(names):06}"
        run.mkdir()
        names.append(name)
        return run

    for name, files in logs(seeds):
        run = place(name)
        for file, content in files:
            (run / file).write_bytes(content)
    write_noisy(place(f"{megabytes} MB of NCCL's tracing") / "log-0.out", megabytes, nemo)
    return names


def answer(root: Path, folder: Path, output: Path) -> None:
    """Write what the reader of the code below `root` makes of the logs."""
    with output.open("w") as stream:
        subprocess.run(
            [sys.executable, ROOT / "benchmarks" / "log_answers.py", folder],
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root / "plugins")},
            stdout=stream,
            check=True,
        )


def answers(before: Path, after: Path) -> Iterator[tuple[Any, Any]]:
    """The answers of both to each log; what is not a number as text, as it equals nothing."""
    with before.open() as old, after.open() as new:
        for lines in zip(old, new, strict=True):
            first, second = (json.loads(line, parse_constant=str, object_hook=_renamed) for line in lines)
            yield first, second


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in fields.items()}


def parts(answer: Any) -> dict[str, Any]:
    """What an answer consists of, by its place there: `.loss` in a record, `[3]` in a list."""
    if isinstance(answer, list):
        return {f"[{at}]": value for at, value in enumerate(answer)}
    if isinstance(answer, dict):
        return {f"[{name}]" if name.isdigit() else f".{name}": value for name, value in answer.items()}
    return {}


def field(place: str) -> str:
    """The field at a place, whatever its numbers are: `.read.steps[].loss`."""
    return re.sub(r"\[\d+\]", "[]", place)


def fields(answer: Any, place: str = "") -> set[str]:
    """All fields of an answer."""
    found = {place}
    for at, value in parts(answer).items():
        found |= fields(value, place + field(at))
    return found


def differences(before: Any, after: Any, ignored: Set[str], place: str = "") -> Iterator[tuple[str, str]]:
    """Place and sentence of each difference, but for fields that are `ignored`."""
    if field(place) in ignored or before == after:
        return
    here, there = parts(before), parts(after)
    raised = {".raised"} & (here.keys() ^ there.keys())
    if raised or not (here or there):
        yield place, f"was {_shown(before)}, and is {_shown(after)}"
        return
    for at in {**here, **there}:
        yield from differences(here.get(at, _ABSENT), there.get(at, _ABSENT), ignored, place + at)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} …"


def compare(names: Iterable[str], outputs: tuple[Path, Path]) -> int:
    """Print what differs, each field with the logs in which it does; in how many logs one does."""
    known: tuple[set[str], set[str]] = (set(), set())
    for pair in answers(*outputs):
        for side, one in zip(known, pair, strict=True):
            side.update(fields(one))
    for who, only in (("the commit", known[0] - known[1]), ("the working tree", known[1] - known[0])):
        if outermost := [each for each in sorted(only) if re.sub(r"(\.\w+|\[\])$", "", each) not in only]:
            print(f"only {who} has, and not compared: {', '.join(outermost)}")
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, pair in zip(names, answers(*outputs), strict=True):
        for place, sentence in differences(*pair, known[0] ^ known[1]):
            found[field(place)].setdefault(name, f"{place} {sentence}")
    for what, where in found.items():
        name, sentence = next(iter(where.items()))
        print(f"{what} in {len(where):,} logs, as in {name}: {sentence}")
    return len({name for where in found.values() for name in where})


def main() -> int:
    """Ask both and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("--megabytes", type=int, default=1024, help="of NCCL's tracing (default: 1024)")
    parser.add_argument("--seeds", type=int, default=4000, help="logs that are made up (default: 4000)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, checked_out(asked.commit) as before:
        folder, outputs = Path(place, "logs"), (Path(place, "before"), Path(place, "after"))
        folder.mkdir()
        names = write(folder, asked.megabytes, asked.seeds)
        for root, output in zip((before, ROOT), outputs, strict=True):
            answer(root, folder, output)
        differing = compare(names, outputs)
    print(f"{len(names):,} logs: " + (f"{differing:,} are read otherwise" if differing else "equal answers"))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
