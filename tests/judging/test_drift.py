"""Slow drift: levels that no single run of a series shows are found in all of them together, as advice."""

import json
import random
import shutil
import sqlite3
import time
from contextlib import closing
from datetime import datetime

import pytest
import stored
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_since
from steptime.judging.drift import STEP_RUNS, find_drift
from steptime.judging.judgements import accept, judge_all
from steptime.judging.series import Series
from steptime.judging.trend import trend
from steptime.store.run_queries import Store

WEEKS = 26
DRIFT = 0.05
"""The drift of the cell `tiny·fp32·2` over half a year."""


def runs(level, number=WEEKS, *, seed=12):
    """Return jobs and seconds of a series with 1 % of noise."""
    dice = random.Random(seed)  # noqa: S311 - step times, not secrets
    return [(f"run-{week:02}", dice.gauss(level(week), 0.01)) for week in range(number)]


def steadily(total):
    return lambda week: 1 + total * week / WEEKS


@pytest.fixture(scope="module")
def filled(tmp_path_factory, make_result):
    """Return a store of half a year with three cells, of which the second gets slower steadily."""
    path = tmp_path_factory.mktemp("drift") / "steptime.db"
    store, now = Store(f"sqlite:///{path}"), time.time()
    with closing(sqlite3.connect(path)):
        for gpus in (1, 2, 4):
            level = steadily(DRIFT if gpus == 2 else 0.0)
            for week, (_, seconds) in enumerate(runs(level, seed=gpus)):
                at = now - (WEEKS - 1 - week) * WEEK_S - 3600
                times = [seconds] * 20
                stored.write(
                    store, make_result(f"{gpus}-{week:02}", gpus=gpus, step_times=times, submitted_at=at)
                )
    judge_all(store)
    return path


@pytest.fixture
def half_a_year(filled, tmp_path, monkeypatch):
    """Return a copy of that store, which commands read."""
    copy = shutil.copy(filled, tmp_path / "copy.db")
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{copy}")
    return Store()


@pytest.mark.long
def test_the_cell_that_drifts_is_named_and_no_other_and_no_verdict_changes(half_a_year):
    shown = CliRunner().invoke(app, ["results", "compare", "--format", "json"], catch_exceptions=False)

    told = json.loads(shown.stdout)
    cells = {row["cell"]: row for row in told["cells"]}
    assert {name: row["drift_percent"] is not None for name, row in cells.items()} == {
        "tiny·fp32·1": False,
        "tiny·fp32·2": True,
        "tiny·fp32·4": False,
    }
    assert cells["tiny·fp32·2"]["verdict"] == "unchanged"
    assert 1.5 <= cells["tiny·fp32·2"]["drift_percent"] < 5
    since = datetime.fromisoformat(cells["tiny·fp32·2"]["since"])
    assert since.timestamp() < time.time() - 4 * WEEK_S
    assert told["sentence"].endswith("3 unchanged; 1 drifts slowly")
    (remark,) = told["remarks"]
    assert remark.startswith("tiny·fp32·2: drifts slowly, by ")
    assert remark.endswith("; advice, no verdict")
    assert shown.exit_code == 0, "advice stops no script"


@pytest.mark.long
def test_a_trend_has_the_levels_that_its_runs_belong_to(half_a_year):
    rows = trend(half_a_year, Series.from_row(half_a_year.run("2-00")))
    usual = trend(half_a_year, Series.from_row(half_a_year.run("1-00")))

    levels = list(dict.fromkeys(row["level_s"] for row in rows))
    assert levels == sorted(levels)
    assert len(levels) >= 2
    assert {row["level_s"] for row in usual} == {None}


def test_an_accepted_level_is_in_the_trend_and_ends_the_drift(half_a_year):
    accept(half_a_year, "2-20", note="meant", accepted_by="somebody")

    rows = trend(half_a_year, Series.from_row(half_a_year.run("2-00")))

    assert {row["job_name"]: row["accepted"] for row in rows if row["accepted"]} == {
        "2-20": "meant (somebody)"
    }
    assert drifting(compare_since(half_a_year, 0)) == []


def test_a_cell_that_is_told_as_slower_does_not_drift_as_well(half_a_year, make_result):
    assert drifting(compare_since(half_a_year, 0)) == ["tiny·fp32·2"]

    publish(half_a_year, make_result("slow", step_times=[1.3] * 20, submitted_at=time.time()))

    assert drifting(compare_since(half_a_year, 0)) == []


def drifting(found):
    return [row["cell"] for row in found.rows if row["drift_percent"] is not None]


def test_a_drift_is_told_by_its_levels():
    levels = (1.0, 1.05, 1.15, 1.2)  # split in the middle first, then on both sides
    found = find_drift(runs(lambda week: levels[week // 8], 32))

    assert found is not None
    assert [level.first for level in found.levels] == ["run-00", "run-08", "run-16", "run-24"]
    assert [level.runs for level in found.levels] == [8, 8, 8, 8]
    assert found.since == "run-08"
    assert found.change == pytest.approx(0.2, abs=0.015)


def test_a_step_is_told_from_a_drift_and_dated_with_its_range():
    step = find_drift(runs(lambda week: 1.0 if week < 20 else 1.02, seed=1), ["run-20"])
    drift = find_drift(runs(steadily(0.06)))

    assert step is not None
    assert drift is not None
    assert (step.step, drift.step) == ((-6, -6, -6), None)


@pytest.mark.parametrize(
    ("what", "level", "number"),
    [
        ("steady", lambda _: 1.0, 104),
        ("faster", lambda week: 1.0 if week < 13 else 0.95, WEEKS),
        ("a trifle", lambda week: 1.0 if week < 26 else 1.008, 104),
        ("a few runs of late", lambda week: 1.0 if week < WEEKS - STEP_RUNS + 1 else 1.03, WEEKS),
        ("one outlier", lambda week: 1.5 if week == 12 else 1.0, WEEKS),
    ],
)
def test_what_is_no_drift(what, level, number):
    assert find_drift(runs(level, number)) is None, what


@pytest.mark.exhaustive
@pytest.mark.slow
def test_how_often_a_steady_series_is_said_to_drift():
    """The series never change; each is looked at every week of a year, after half a year of runs."""
    series, told = 400, 0
    for seed in range(series):
        history = runs(lambda _: 1.0, WEEKS + 52, seed=seed)
        told += any(find_drift(history[:until]) for until in range(WEEKS + 1, len(history) + 1))

    assert told / series < 0.02


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("total", "seen"), [(0.03, 0.35), (0.04, 0.7), (0.05, 0.93)])
def test_how_often_a_drift_is_seen_after_half_a_year(total, seen):
    share = sum(find_drift(runs(steadily(total), seed=seed)) is not None for seed in range(100)) / 100

    assert share == pytest.approx(seen, abs=0.06)


@pytest.mark.long
def test_the_same_runs_drift_or_do_not_whenever_they_are_asked():
    for seed in range(5):
        history = runs(steadily(0.035), seed=seed)
        assert len({find_drift(history) is None for _ in range(3)}) == 1, seed
