"""What judging says of real trainings: the figures of `docs/judging.md` come of the runs that are kept."""

from pathlib import Path

import pytest

import real_noise
from steptime.judging.detection import standings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
USUAL, SLOWER = real_noise.read(ROOT / "benchmarks/real_noise/alone.jsonl")


def test_the_page_has_what_is_said_of_thirty_runs() -> None:
    page = (ROOT / "docs/judging.md").read_text()

    for what, figure in real_noise.judge(USUAL, SLOWER).items():
        assert f"| {what} | {figure} |" in page


def test_thirty_runs_that_nothing_slowed_raise_no_alarm() -> None:
    assert len(USUAL) == 30
    assert "slower" not in {one.direction for one in standings(USUAL)}


def test_runs_that_were_slowed_are_suspected_and_confirmed() -> None:
    stood = standings([*USUAL, *SLOWER])[len(USUAL) :]

    assert [(one.state, one.direction) for one in stood] == [
        *[("suspected", "slower")] * 2,
        ("confirmed", "slower"),
    ]
