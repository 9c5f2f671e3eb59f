"""Judgements stored run by run equal those of judging the whole store at once, in any order of runs."""

import random
from pathlib import Path

import pytest
import sqlalchemy
from stored import publish

from steptime.clusters.base import JobState, JobStatus
from steptime.judging import drift
from steptime.judging.judgements import accept, judge_all
from steptime.store import efficiency
from steptime.store.columns import COMPUTED
from steptime.store.database import read_connection
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

BAD = Verdict(checks=(Check(name="x", passed=False, message="Expected one thing, but found another."),))
DAY_S = 86_400.0
CHANGES = 100
SEARCHED = 26
"""The number of runs in which drift is looked for here, so small that a series has more."""


@pytest.mark.parametrize(
    ("seed", "occurring"),
    [
        (5, {"history suspected", "history dismissed", "history unchanged", "drift confirmed"}),
        *(pytest.param(seed, set(), marks=pytest.mark.exhaustive) for seed in (*range(1, 5), *range(6, 15))),
    ],
)
@pytest.mark.slow
def test_a_store_that_changes_run_by_run_is_judged_as_if_at_once(
    store, make_result, monkeypatch, seed, occurring
):
    """Runs end in any order, are read anew, are withdrawn, and come back; levels are accepted."""
    monkeypatch.setattr(drift, "LONGEST_RUNS", SEARCHED)
    monkeypatch.setattr(efficiency, "EARLIER_S", 3 * DAY_S)
    dice = random.Random(seed)  # noqa: S311 - an order, no secret
    walk = Walk(make_result, dice)

    seen = set()
    for number in range(CHANGES):
        walk.change(store)
        if number % 10 == 9:
            kept = stored(store.url)
            assert kept == judged_at_once(store, number)
            seen |= {f"{row['kind']} {row['series_state']}" for row in kept["judgements"].values()}
            seen |= {"scales" for row in kept["runs"].values() if row["scaling_efficiency_percent"]}

    assert occurring | {"scales"} <= seen


class Walk:
    """Runs on 1, 2 and 4 GPUs, which random changes publish, reject, read anew and accept."""

    def __init__(self, make_result, dice):
        self.make_result, self.dice = make_result, dice
        self.numbers = sorted(range(CHANGES), key=lambda number: -number + dice.choice([0, 0, 0, 9]))
        self.published = []
        self.levels = self._levels()

    def _levels(self):
        """Return long and short spells of levels, each run with noise."""
        levels = []
        while len(levels) < CHANGES:
            usual = 1 + 0.012 * (len(levels) // 12)
            levels += [usual] * 8 + [usual * self.dice.choice([1.06, 0.93])] * self.dice.choice([1, 3, 9])
        return [level * self.dice.gauss(1, 0.002) for level in levels]

    def change(self, store):
        what = self.dice.random()
        if what < 0.75 or len(self.published) < 8:
            number = self.numbers.pop()
            self.published.append(number)
            publish(store, self.result(number))
        elif what < 0.85:
            publish(store, self.result(self.dice.choice(self.published), verdict=BAD))
        elif what < 0.98:
            publish(store, self.result(self.dice.choice(self.published), again=self.dice.choice([0, 1, 5])))
        else:
            judged = [row["job_name"] for row in store.results(gpus=2) if row["step_time_mean_s"]]
            accept(store, self.dice.choice(judged), note="meant", accepted_by="somebody", now=1e9)

    def result(self, number, *, again=0, **options):
        """Return the run of that number; with `again` it was read anew, with another step time and day."""
        name, scale = f"run-{number:02}", number % 8
        at = 1e9 + (number + again) // 2 * DAY_S  # two at a time
        provenance = self.make_result("x").submitted.provenance.model_copy(
            update={"dag_run_id": f"of-{number // 4 if scale < 2 else number}"}
        )
        return self.make_result(
            name,
            gpus=1 if scale == 0 else 4 if scale == 1 else 2,
            step_times=[self.levels[(number + again) % CHANGES]] * 20,
            submitted_at=at,
            provenance=provenance,
            status=JobStatus(state=JobState.SUCCEEDED, started_at=at, ended_at=at + 9, nodes=(f"n{scale}",)),
            **options,
        )


def stored(url):
    """Return all judgements of a store, and how its runs scale."""
    scales = ", ".join(COMPUTED)
    with read_connection(url) as connection:
        judged = connection.execute(sqlalchemy.text("SELECT * FROM judgements")).mappings().all()
        runs = connection.execute(sqlalchemy.text(f"SELECT job_name, {scales} FROM runs")).mappings().all()  # noqa: S608 - names of columns
    return {
        "judgements": {(row["run_id"], row["metric"], row["kind"]): dict(row) for row in judged},
        "runs": {row["job_name"]: dict(row) for row in runs},
    }


def judged_at_once(store, number):
    """Return the same for a copy of the store after all of its runs were judged anew."""
    path = Path(store.url.removeprefix("sqlite:///")).with_name(f"copy-{number}.db")
    with read_connection(store.url) as connection:
        connection.connection.execute("VACUUM INTO ?", [str(path)])  # type: ignore[attr-defined]
    copy = Store(f"sqlite:///{path}")
    judge_all(copy)
    return stored(copy.url)
