"""Answers of two log readers: what differs is found, and what only one of them has is left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from equal_answers import compare


@pytest.mark.parametrize(
    ("before", "after", "printed"),
    [
        ({"steps": [{"loss": 1.0}]}, {"steps": [{"loss": 1.0}]}, ""),
        ({"loss": float("nan")}, {"loss": float("nan")}, ""),
        ({"dialect": "nemo2"}, {"format": "nemo2"}, ""),
        (
            {"loss": 1.0},
            {"loss": 1.0, "new": [{"one": 1}]},
            "only the working tree has, and not compared: .new\n",
        ),
        (
            {"steps": [{"loss": 1.0}, {"loss": 2.0}]},
            {"steps": [{"loss": 1.0}, {"loss": 3.0}]},
            ".steps[].loss in 1 logs, as in one: .steps[1].loss was 2.0, and is 3.0\n",
        ),
        (
            {"latest": {"3": "a", "4": "b"}},
            {"latest": {"4": "b"}},
            ".latest[] in 1 logs, as in one: .latest[3] was a, and is (nothing)\n",
        ),
    ],
)
def test_what_differs_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: Any, after: Any, printed: str
) -> None:
    outputs = tmp_path / "before", tmp_path / "after"
    for output, answer in zip(outputs, (before, after), strict=True):
        output.write_text(f"{json.dumps(answer)}\n")
    assert compare(["one"], outputs) == (" in 1 logs" in printed)
    assert capsys.readouterr().out == printed
