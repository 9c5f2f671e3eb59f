"""What a comparison leaves out is said in one line, alike on the page, in the terminal and in the report."""

import json
import random
import shutil
import time

import pytest
import stored
from stored import publish
from sync_ledger import ledger
from typer.testing import CliRunner

from steptime.cli import app
from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_dag_run, compare_planned, compare_since, compare_sweep
from steptime.judging.judgements import judge_all
from steptime.judging.missing_cells import Completeness, MissingCell, find_missing, two_levels
from steptime.judging.series import Series
from steptime.judging.trend import sentence, trend
from steptime.logs.training_log import Problem
from steptime.pages import answers
from steptime.pages.report_file import html, report_since
from steptime.settings import config_dir
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store
from tests.store.conftest import ledger_job

__all__ = ["ledger_job"]  # a fixture

NOW = time.time()
MEMORY = "CUDA out of memory on rank 1"
NCCL = "NCCL: a collective timed out on rank 0"
WEEKS = 8
WATCHED = Verdict(checks=(Check(name="job_succeeded", passed=False, message="Expected it, but it failed."),))


def run(
    make_result,
    gpus,
    week,
    *,
    sweep="weekly-h",
    cause=None,
    attempt=1,
    seconds=0.2,
    **options,
):
    """Return a run of the cell `tiny·fp32·GPUS`, `week` weeks ago; with a `cause` it failed."""
    provenance = make_result("x", dag_run_id=str(week)).submitted.provenance.model_copy(
        update={"sweep": sweep}
    )
    name = f"tiny-{gpus}-{week}-{attempt}{sweep or ''}"
    at = NOW - 3600 - week * WEEK_S + 60 * attempt
    made = make_result(
        name, gpus=gpus, submitted_at=at, provenance=provenance, step_times=[seconds * gpus] * 20, **options
    )
    if cause is None:
        return made
    problem = Problem(kind="failed", message=f"{cause}.", fatal=True)
    return made.model_copy(
        update={"log": made.log.model_copy(update={"problems": (problem,)}), "verdict": WATCHED}
    )


@pytest.fixture(scope="module")
def filled(tmp_path_factory, make_result):
    """Return eight weeks of a sweep of three cells; in the last, one failed thrice and one did not run."""
    path = tmp_path_factory.mktemp("weeks") / "steptime.db"
    store = Store(f"sqlite:///{path}")
    for week in reversed(range(WEEKS)):
        for gpus in (1, 2, 4):
            if week or gpus == 1:
                stored.write(store, run(make_result, gpus, week))
    for attempt, cause in enumerate((MEMORY, NCCL, MEMORY), start=1):
        stored.write(store, run(make_result, 2, 0, cause=cause, attempt=attempt))
    judge_all(store)
    return path


@pytest.fixture
def weeks(filled, tmp_path, monkeypatch):
    """Return the test's own copy of that store, which commands read."""
    url = f"sqlite:///{shutil.copy(filled, tmp_path / 's.db')}"
    monkeypatch.setenv("STEPTIME_STORE_URL", url)
    return Store(url)


LINE = (
    f"3 cells planned: 1 judged, 1 failed (tiny·fp32·2: {MEMORY}), "
    "1 not run (tiny·fp32·4: sweep weekly-h has no result of it)"
)


@pytest.mark.long
def test_cells_that_failed_or_did_not_run_are_named_with_the_cause(weeks):
    day = time.strftime("%Y-%m-%d", time.localtime(NOW - 3600 - WEEK_S + 60))
    remarks = [
        f"tiny·fp32·2 failed 3 times, the newest: {MEMORY}",
        f"tiny·fp32·4 did not run: sweep weekly-h has no result of it; it ran last on {day}",
    ]
    for found in (
        compare_since(weeks, NOW - WEEK_S),
        compare_sweep(weeks, "weekly-h"),
        compare_dag_run(weeks, "steptime_llama3.1-25.04", "0"),
    ):
        assert found.completeness is not None
        assert found.completeness.line == LINE
        assert found.completeness.remarks == remarks
        assert found.sentence.startswith("1 cell: 0 slower, 0 faster, 1 unchanged")


@pytest.mark.long
def test_a_cell_that_failed_in_the_weeks_before_fails_for_the_third_week(weeks, make_result):
    for week in (0, 1, 2, 4):
        stored.write(weeks, run(make_result, 8, week, cause=MEMORY))

    found = compare_since(weeks, NOW - WEEK_S).completeness

    assert found is not None
    assert f"tiny·fp32·8 failed: {MEMORY}; it fails for the third week" in found.remarks
    series = Series.from_run(run(make_result, 8, 0).run)
    missing = find_missing(weeks, series, NOW)
    assert missing is not None
    assert missing.sentence == f"failed 4 times, the newest: {MEMORY}; it fails for the third week"


def test_a_job_that_left_no_log_has_failed(weeks, make_result, ledger_job):
    of_cell = {
        "run": run(make_result, 4, 0).run,
        "dag_run_id": "0",
        "created_at": NOW - 3600,
        "ended_at": NOW,
    }
    ledger.add(ledger_job("first", **of_cell, state="timed_out"))
    ledger.add(ledger_job("second", **of_cell | {"created_at": NOW - 60}, state="failed", reason="no space"))
    ledger.add(ledger_job("before", **of_cell | {"created_at": NOW - 2 * WEEK_S, "dag_run_id": "2"}))
    marked = answers.series_trend(weeks, Series.from_run(of_cell["run"]), may_accept=False)["failed"]
    assert [one for one in marked if one["job_name"] is None] == [
        {"job_name": None, "submitted_at": NOW - 3600, "reason": "timed_out"},
        {"job_name": None, "submitted_at": NOW - 60, "reason": "no space"},
    ]

    for found in (
        compare_since(weeks, NOW - WEEK_S),
        compare_sweep(weeks, "weekly-h"),
        compare_dag_run(weeks, "steptime_llama3.1-25.04", "0"),
    ):
        assert found.completeness is not None
        assert "0 not run" in found.completeness.line
        assert found.completeness.remarks[1] == "tiny·fp32·4 failed 2 times, the newest: no space"
    hidden = compare_since(Store(weeks.url, dags=["another"]), NOW - WEEK_S).completeness
    assert hidden is not None
    assert hidden.planned == 0


def test_weeks_in_which_jobs_left_no_run_count_as_failed(
    weeks,
    make_result,
    ledger_job,
):
    """Cell 8 left no run for three weeks, after a rejected one; cell 16 was rejected after two such weeks.

    In the week before these, cell 8 had a job without a run, a rejected run, and then a valid one.
    """
    lost = {"state": "failed", "reason": "no space"}

    def add(gpus, week, **fields):
        at = NOW - 3600 - week * WEEK_S
        of_cell = {"run": run(make_result, gpus, 0).run, "created_at": at, "ended_at": at + 60}
        ledger.add(ledger_job(f"{gpus}-{week}", **of_cell, dag_run_id=str(week), **fields))

    for week in (5, 4):
        stored.write(weeks, run(make_result, 8, week))
    for week, attempt in ((4, 0), (3, 1)):
        stored.write(weeks, run(make_result, 8, week, cause=MEMORY, attempt=attempt))
    stored.write(weeks, run(make_result, 16, 0, cause=MEMORY))
    for gpus, week in ((8, 4), (8, 2), (8, 1), (8, 0), (16, 2), (16, 1)):
        add(gpus, week, **lost)
    add(4, 0, state="cancelled")
    said = {
        8: "failed: no space; it fails for the fourth week",
        16: f"failed: {MEMORY}; it fails for the third week",
    }
    for found in (compare_since(weeks, NOW - WEEK_S), compare_sweep(weeks, "weekly-h")):
        assert found.completeness is not None
        assert {*found.completeness.remarks} >= {f"tiny·fp32·{gpus} {told}" for gpus, told in said.items()}
    for gpus, told in said.items():
        missing = find_missing(weeks, Series.from_run(run(make_result, gpus, 0).run), NOW)
        assert missing is not None
        assert missing.sentence == told


def test_command_line_and_report_print_the_same(weeks):
    shown = CliRunner().invoke(app, ["results", "compare"], catch_exceptions=False).stdout
    as_json = json.loads(
        CliRunner().invoke(app, ["results", "compare", "--format", "json"], catch_exceptions=False).stdout
    )
    report = html(report_since(weeks, NOW - WEEK_S), NOW)

    assert f"\n{LINE}.\n" in shown
    assert "tiny·fp32·4 did not run: " in shown
    assert as_json["completeness"]["line"] == LINE
    assert [one["cell"] for one in as_json["completeness"]["missing"]] == ["tiny·fp32·2", "tiny·fp32·4"]
    assert f"{LINE}." in report


def test_the_trend_of_such_a_cell_says_so_instead_of_a_verdict_of_today(weeks):
    said = {}
    for row in weeks.results(since=NOW - 2 * WEEK_S):
        series = Series.from_row(row)
        said[row["gpus"]] = sentence(series, trend(weeks, series), find_missing(weeks, series, NOW))

    assert "0.2 s, unchanged, after 8 runs." in said[1]
    assert ": 0.4 s, unchanged until " in said[2]
    assert f", after 7 runs; since then it failed 3 times, the newest: {MEMORY}." in said[2]
    assert ", after 7 runs; since then it did not run: sweep weekly-h has no result of it; " in said[4]


def test_every_count_of_the_line_and_of_json(make_result):
    """Dates are local, and 06:00 UTC is the same day in all time zones of the tests."""

    def cell(gpus, cause=MEMORY, **fields):
        told = {"attempts": 1, "last_job": f"job-{gpus}", "last_ran": 1_789_971_200.0} | fields
        return MissingCell(series(gpus), cause, **told)

    def series(gpus):
        return Series.from_run(make_result("x", gpus=gpus).run)

    found = Completeness(
        judged=21,
        insufficient_history=2,
        without_a_number=3,
        failed=(cell(1), cell(2, attempts=3), cell(4, NCCL, weeks=5), cell(8, NCCL, weeks=6, attempts=2)),
        not_run=(
            cell(16, "it waits", attempts=0),
            cell(32, "it waits", attempts=0, last_ran=None, last_job=None),
        ),
        failed_since=(cell(64, weeks=2),),
        too_noisy=(series(128), series(256)),
        alternating=tuple(series(2**power) for power in range(9, 15)),
        names={series(2): "the second"},
    )
    first = "32 cells planned: 21 judged, 2 with insufficient history, 3 without a time to judge, 4 failed"
    noisy = "2 too noisy to detect 5 % (tiny·fp32·128, tiny·fp32·256)"
    alternate = ", ".join(f"tiny·fp32·{2**power}" for power in range(9, 13))
    last = f"{noisy}; 6 alternating between two levels ({alternate} and 2 more)"
    since = "shown by an earlier run, as the newest failed"
    assert found.line == (
        f"{first} (tiny·fp32·1, the second: {MEMORY}; tiny·fp32·4, tiny·fp32·8: {NCCL}), "
        f"2 not run (tiny·fp32·16, tiny·fp32·32: it waits); 1 {since} (tiny·fp32·64: {MEMORY}); {last}"
    )
    assert found.counts == f"{first}, 2 not run; 1 {since}; {last}"
    assert found.remarks == [
        f"tiny·fp32·1 failed: {MEMORY}",
        f"the second failed 3 times, the newest: {MEMORY}",
        f"tiny·fp32·4 failed: {NCCL}; it has failed for more than four weeks",
        f"tiny·fp32·8 failed 2 times, the newest: {NCCL}; it has failed for more than four weeks",
        "tiny·fp32·16 did not run: it waits; it ran last on 2026-09-21",
        "tiny·fp32·32 did not run: it waits; it has never run",
        f"tiny·fp32·64 failed: {MEMORY}; it fails for the second week",
    ]
    told = found.as_json
    numbers = {name: value for name, value in told.items() if isinstance(value, int)}
    assert numbers == {
        **{"planned": 32, "judged": 21, "insufficient_history": 2, "without_a_number": 3},
        **{"failed": 4, "not_run": 2},
    }
    assert (told["line"], told["counts"]) == (found.line, found.counts)
    assert [(one["attempts"], one["job_name"]) for one in told["missing"]] == [
        *((1, "job-1"), (3, "job-2"), (1, "job-4"), (2, "job-8"), (0, "job-16"), (0, None), (1, "job-64")),
    ]
    assert (len(told["too_noisy"]), len(told["alternating"])) == (2, 6)


@pytest.mark.parametrize(
    ("late", "line"),
    [
        (0.0, "1 cell planned: 0 judged, 1 with insufficient history, 0 failed, 0 not run"),
        (
            0.3,
            "2 cells planned: 0 judged, 1 with insufficient history, 0 failed, "
            "1 not run (tiny·fp32·1: sweep weekly-h did not run)",
        ),
    ],
)
def test_a_whole_sweep_is_missing_once_it_is_overdue(store, make_result, late, line):
    for week in (3, 2, 1):
        publish(store, run(make_result, 1, week + late))
        publish(store, run(make_result, 2, week + late, sweep=None))
    publish(store, run(make_result, 4, 0, sweep=None))

    found = compare_since(store, NOW - 0.9 * WEEK_S).completeness

    assert found is not None
    assert found.line == line


def test_the_sweeps_file_says_what_is_planned(store, make_result, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(shutil.copytree(config_dir(), tmp_path / "config")))
    (tmp_path / "config" / "sweeps" / "weekly-h.yaml").write_text(
        "name: weekly-h\ndescription: Two cells\ncluster: local\ngpu_hours_max: 10\n"
        "runs:\n  - {workload: llama3.1, size: tiny, gpus: [1, 2], checkpoint: false}\n"
    )
    never = "nothing of it has a result; it has never run"

    before = compare_planned(store, "weekly-h").completeness
    for gpus, week in ((1, 1), (8, 1), (1, 0)):
        publish(store, run(make_result, gpus, week))
    after = compare_since(store, NOW - WEEK_S).completeness

    assert before is not None
    assert before.line.startswith(
        "2 cells planned: 0 judged, 0 failed, 2 not run (tiny·fp32·1, tiny·fp32·2: "
    )
    assert after is not None
    assert after.remarks == [f"tiny·fp32·2 did not run: {never}"], "8 is planned no longer"


def levels(seed, level, noise=0.01):
    """Return the step times of half a year of weekly runs."""
    rng = random.Random(seed)  # noqa: S311 - step times, not secrets
    return [level(week, rng) * rng.gauss(1, noise) for week in range(26)]


@pytest.mark.parametrize(
    ("level", "least", "most"),
    [
        (lambda _week, _rng: 1.0, 0, 0.02),
        (lambda _week, rng: 1 + 0.04 * rng.randint(0, 1), 0.35, 1),
        (lambda _week, rng: 1 + 0.06 * rng.randint(0, 1), 0.95, 1),
        (lambda week, _rng: 1 + 0.06 * (week // 4 % 2), 0.95, 1),
        (lambda week, _rng: 1 + 0.06 * (week > 13), 0, 0.05),
        (lambda week, _rng: 1 + 0.06 * (10 < week < 16), 0, 0.05),
    ],
    ids=["one level", "4 %", "6 %", "by the month", "a step", "a step and back"],
)
def test_two_levels_are_told_from_one_and_from_a_step(level, least, most):
    found = [two_levels(levels(seed, level)) is not None for seed in range(300)]
    assert least <= sum(found) / len(found) <= most


@pytest.mark.long
def test_cells_that_alternate_or_are_too_noisy_are_counted(store, make_result):
    def times(seed, level, noise):
        rng = random.Random(seed)  # noqa: S311 - step times, not secrets
        return [0.2 * level[week % len(level)] * rng.gauss(1, noise) for week in range(16)]

    cells = {1: times(1, [1], 0.005), 2: times(2, [1], 0.005), 4: times(3, [1, 1.05], 0.005)}
    cells[8] = times(4, [1], 0.06)
    for gpus, seconds in cells.items():
        for week, one in enumerate(reversed(seconds)):
            stored.write(store, run(make_result, gpus, week, seconds=one))

    found = compare_since(store, NOW - WEEK_S).completeness

    assert found is not None
    assert found.line == (
        "4 cells planned: 4 judged, 0 failed, 0 not run; 1 too noisy to detect 5 % (tiny·fp32·8); "
        "1 alternating between two levels (tiny·fp32·4)"
    )
