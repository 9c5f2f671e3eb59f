"""Judgements of 33 real trainings: 30 usual runs, and three that were slowed.

NeMo trained the tiny Llama 3.1 on one rank with one thread, alone on a core.
The last three ran without AVX.
"""

import json
from pathlib import Path

from steptime.judging.detection import series_states

RUNS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/real_noise.jsonl").read_text().splitlines()
]
USUAL, SLOWER = (
    [run["steady_step_time_s"] for run in RUNS if (len(run["environment"]) > 1) is slowed]
    for slowed in (False, True)
)


def test_thirty_runs_that_nothing_slowed_raise_no_alarm():
    assert len(USUAL) == 30
    assert "slower" not in {one.direction for one in series_states(USUAL)}


def test_runs_that_were_slowed_are_suspected_and_confirmed():
    stood = series_states([*USUAL, *SLOWER])[len(USUAL) :]

    assert [(one.state, one.direction) for one in stood] == [
        *[("suspected", "slower")] * 2,
        ("confirmed", "slower"),
    ]
