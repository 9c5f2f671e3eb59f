"""Every line of `lines_by_release.yaml`, where each release's are recorded, is read alone and in sequence."""

from dataclasses import asdict
from pathlib import Path

import yaml
from logs.line_forms import read_chunks

ENTRIES = yaml.safe_load(Path(__file__).with_name("lines_by_release.yaml").read_text())

HARMLESS = {
    "no_steps",
    "empty_log",
    "missing_steps",
    "no_step_time",
    "short",
    "end_unknown",
    "unnumbered_steps",
}
"""Kinds of problems that a log of one line always has."""


def read(*lines):
    return read_chunks(["".join(f"{line}\n" for line in lines).encode()])


def found(*lines):
    """Return what the reader finds in lines, under the table's names."""
    log = read(*lines)
    what = {}
    if log.steps:
        (step,) = log.steps
        what["step"] = {name: value for name, value in asdict(step).items() if value is not None}
    if log.checkpoints:
        (checkpoint,) = log.checkpoints
        what["checkpoint"] = checkpoint.model_dump(exclude_none=True)
    problems = [problem for problem in log.problems if problem.kind not in HARMLESS]
    if problems:
        what |= {"problem": problems[0].kind, "says": problems[0].message}
    return what


def misread(lines, read_as):
    """Return how the reader's findings differ from the table's, or an empty text if they do not."""
    expected, what = dict(read_as), found(*lines)
    sentence, told = expected.pop("says", ""), what.pop("says", "")
    right = repr(expected) == repr(what) and sentence in told  # as text, because NaN != NaN
    return "" if right else f"{lines}: {what} {told}"


def test_every_line_is_read():
    wrong = [misread([entry["line"]], entry["read"]) for entry in ENTRIES["lines"]]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_what_public_logs_taught_is_read():
    wrong = [misread(entry["lines"], entry["read"]) for entry in ENTRIES["public"]]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_every_sequence_is_read():
    wrong = []
    for sequence in ENTRIES["sequences"]:
        log = read(*sequence["lines"])
        checkpoints = [checkpoint.model_dump(exclude_none=True) for checkpoint in log.checkpoints]
        unfinished = [problem for problem in log.problems if problem.kind == "checkpoint_not_finalised"]
        if checkpoints != sequence["checkpoints"] or unfinished:
            wrong.append(f"{sequence['release']}: {checkpoints} {unfinished}")
    assert not wrong, "\n".join(wrong)
