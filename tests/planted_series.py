"""One series of weekly runs with planted changes, and two more runs wherever one is suspected."""

import json
import random

from steptime.durations import WEEK_S
from steptime.judging.detection import CONFIRMATION_RUNS
from steptime.judging.judgements import SeriesRecords, judge_runs
from steptime.judging.series import SeriesRun

NOISE = 0.01


def planted_series(seed, weeks, level, changed, *, fewest=0):
    """Return the judgement of a series' last run of each week, oldest first. Its noise is 1 %.

    Args:
        seed: of the noise.
        weeks: number of weeks.
        level: time relative to the usual one by week.
        changed: values of the variable NCCL_ALGO by the week from which on they are set.
        fewest: the first week whose judgement is wanted; earlier ones are left out.
    """
    rng = random.Random(seed)  # noqa: S311 - step times, not secrets
    runs = []
    records = {}
    mondays = []
    for week in range(weeks):
        value = next((changed[one] for one in sorted(changed, reverse=True) if week >= one), "none")
        for number in range(1 + CONFIRMATION_RUNS):
            job = f"run-{week:02}{'abc'[number]}"
            row = {
                "job_name": job,
                "submitted_at": week * WEEK_S + 3600 * number,
                "nodes": "",
                "dag_id": None,
                "stragglers": None,
            }
            runs.append(SeriesRun(row, rng.gauss(level(week), NOISE), "median of steps 30 to 49"))
            records[job] = json.dumps(
                {
                    "run": {},
                    "nodes": [],
                    "versions": {},
                    "provenance": {
                        "staged": {"image": "nemo:26.04"},
                        "environment": {"NCCL_ALGO": value},
                        "steptime_version": "1",
                        "git_commit": "",
                    },
                }
            )
            judged = judge_runs(runs, SeriesRecords(records.__getitem__, lambda: dict(records)))[-1]
            if judged.series_state.suspicion is None:
                break
        if week >= fewest:
            mondays.append(judged)
    return mondays
