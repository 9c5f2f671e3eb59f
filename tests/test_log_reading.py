"""The benchmark of log reading: goals are of the same run, and what reads nothing is left out."""

from pathlib import Path

import pytest

import log_reading
from log_reading import Goal, as_fast_as, at_least, measure


@pytest.mark.parametrize(
    ("goal", "expected"),
    [(as_fast_as("other", 1.2), 12.0), (as_fast_as("rg", 1.2), None), (at_least(60), 60.0)],
)
def test_goals_are_of_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goal: Goal, expected: float | None
) -> None:
    """A log of 10 MB is read in one and in two seconds."""
    clock = iter([0.0, 1.0, 10.0, 11.0])
    monkeypatch.setattr(log_reading, "processor_s", lambda: next(clock))
    monkeypatch.setattr(log_reading, "peak_mb", lambda *_: 40.0)
    log = tmp_path / "log.out"
    log.write_bytes(bytes(10_000_000))
    readers = {"steptime": len_of, "other": len_of, "reads nothing": lambda _: 0}
    rate, memory = measure("made up", log, readers, 1, goal=goal)
    assert (rate.value, rate.beside, rate.goal) == (10.0, {"other": 10.0}, expected)
    assert (memory.value, memory.beside) == (40.0, {"other": 40.0})
    assert rate.misses_goal == (expected is not None)


def len_of(log: Path) -> int:
    return log.stat().st_size
