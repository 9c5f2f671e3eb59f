"""What each release prints is read: every line of `lines_by_release.yaml`, alone and in its sequence."""

from pathlib import Path
from typing import Any

import yaml
from logs.upstream_lines import entries, table

from steptime.logs.models import TrainingLog
from steptime.logs.reader import read_chunks

HERE = Path(__file__)
SEQUENCES = yaml.safe_load(HERE.with_name("lines_by_release.yaml").read_text())["sequences"]
DOCS = HERE.parents[2] / "docs" / "logs.md"
HARMLESS = {"no_steps", "empty_log", "missing_steps", "no_step_time", "short"}
"""What a log of one line has in any case."""


def read(*lines: str) -> TrainingLog:
    return read_chunks(["".join(f"{line}\n" for line in lines).encode()])


def found(line: str) -> dict[str, Any]:
    """What the reader makes of a line, in the words of the table."""
    log = read(line)
    what: dict[str, Any] = {}
    if log.steps:
        (step,) = log.steps
        what["step"] = step.model_dump(exclude_none=True)
    if log.checkpoints:
        (checkpoint,) = log.checkpoints
        what["checkpoint"] = checkpoint.model_dump(exclude_none=True)
    problems = [problem for problem in log.problems if problem.kind not in HARMLESS]
    if problems:
        what |= {"problem": problems[0].kind, "says": problems[0].message}
    return what


def test_every_line_is_read() -> None:
    wrong = []
    for entry in entries():
        expected, what = dict(entry["read"]), found(entry["line"])
        sentence, told = expected.pop("says", ""), what.pop("says", "")
        if repr(expected) != repr(what) or sentence not in told:  # NaN equals nothing
            wrong.append(f"{entry['line']}: {what} {told}")
    assert not wrong, "\n".join(wrong)


def test_every_sequence_is_read() -> None:
    wrong = []
    for sequence in SEQUENCES:
        log = read(*sequence["lines"])
        checkpoints = [checkpoint.model_dump(exclude_none=True) for checkpoint in log.checkpoints]
        unfinished = [problem for problem in log.problems if problem.kind == "checkpoint_not_finalised"]
        if checkpoints != sequence["checkpoints"] or unfinished:
            wrong.append(f"{sequence['release']}: {checkpoints} {unfinished}")
    assert not wrong, "\n".join(wrong)


def test_the_docs_have_the_table() -> None:
    """`python tests/logs/upstream_lines.py table` makes it anew."""
    assert table() in DOCS.read_text()
