"""Goodput: the part of jobs' GPU-hours that goes into training steps, and where the rest goes."""

import csv
import io
import time
from dataclasses import replace

import pytest
import stored
from sync_ledger import ledger
from typer.testing import CliRunner

from steptime.cli import app
from steptime.clusters.base import JobState
from steptime.judging.comparison import compare_since
from steptime.logs.training_log import CheckpointTiming
from steptime.measure.goodput import PARTS, Goodput, compute_goodput, job_times
from steptime.measure.metrics import measure
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store


def with_steps(result, steps, *checkpoints):
    log = result.log.model_copy(update={"steps": tuple(steps), "checkpoints": checkpoints})
    return result.model_copy(update={"log": log, "measurement": measure(result.run, log)})


def test_first_steps_count_as_long_as_a_steady_one(make_result):
    result = make_result(step_times=[30.5, 1.5, *[0.5] * 18])
    saved = CheckpointTiming(kind="save", iteration=19, started_at=None, duration_s=9, blocked_s=2)
    loaded = CheckpointTiming(kind="load", iteration=0, started_at=None, duration_s=4)
    untimed = CheckpointTiming(kind="save", iteration=1, started_at=None, duration_s=None)
    times = job_times(with_steps(result, list(result.log.steps), saved, loaded, untimed))
    assert times is not None
    assert (times.in_steps_s, times.first_steps_s, times.in_checkpoints_s) == (10.0, 31.0, 6.0)


def test_a_line_for_every_tenth_step_counts_ten_times(make_result):
    result = make_result(step_times=[0.5] * 20)
    lines = [replace(step) for step in result.log.steps if step.global_step % 10 == 9]
    times = job_times(with_steps(result, lines))
    assert times is not None
    assert (times.in_steps_s, times.first_steps_s) == (10.0, 0.0)


def test_a_run_without_steps_has_no_times(make_result):
    result = make_result()
    assert job_times(result.model_copy(update={"measurement": None})) is None


def hours(**parts):
    return {part: parts.get(part.replace(" ", "_"), 0.0) for part in PARTS}


def test_parts_are_named_by_their_size_and_small_ones_are_not():
    goodput = Goodput(hours(training_steps=71, start_and_end=12, failures=16.6, checkpoints=0.4))
    assert goodput.sentence == "goodput 71 %; 17 % failures, 12 % start and end"
    assert Goodput(hours(training_steps=1)).sentence == "goodput 100 %"
    assert compute_goodput([], []) is None


def test_jobs_without_a_result_are_failures_or_resubmissions(ledger_job, make_result, store):
    """The valid run has 40 s allocated, and starts 1.5 s after it was submitted."""
    now = time.time()
    took = {"started_at": now - 100, "ended_at": now - 60, "created_at": now - 200, "cell": "a"}
    failed = {"state": JobState.FAILED, **took}
    for name, fields in {
        "lost": {**failed, "attempt": 1},
        "resubmitted": {**failed, "attempt": 2, "resubmission": 1, "started_at": now - 80},
        "cancelled": {**took, "state": JobState.CANCELLED, "cell": "b"},
        "never began": {**failed, "cell": "c", "started_at": None},
        "is parsed next": {**took, "state": JobState.SUCCEEDED, "cell": "d"},
        "valid": {**took, "state": JobState.SUCCEEDED, "cell": "e"},
        "of another cluster": {**failed, "cell": "f", "cluster": "west"},
    }.items():
        ledger.add(ledger_job(name, gpus=4, **{"cluster": "local", **fields}))
    times = [0.5] * 20
    stored.publish(Store(store), make_result("valid", gpus=4, submitted_at=now - 50, step_times=times))
    bad = Verdict(checks=(Check(name="x", passed=False, message="It is bad."),))
    stored.publish(Store(store), make_result("bad", gpus=4, submitted_at=now - 50, verdict=bad))

    found = compare_since(Store(store), now - 86_400, {"cluster": "eos"})
    assert found.goodput == ""
    found = compare_since(Store(store), now - 86_400)
    # 38.5 s each for the valid and the rejected run, 40 + 20 + 40 + 40 s for jobs without a result.
    assert found.goodput == "goodput 5 %; 64 % failures, 18 % resubmissions, 13 % start and end"
    shown = CliRunner().invoke(app, ["results", "goodput", "--format", "csv"])
    (row,) = csv.DictReader(io.StringIO(shown.stdout))
    assert float(row["goodput_percent"]) == pytest.approx(100 * 10 / 217)
    assert float(row["resubmissions_percent"]) == pytest.approx(100 * 40 / 217)

    for name, before_s in (("before", 100_000), ("long before", 200_000)):  # the day before, and before that
        earlier = make_result(name, gpus=4, submitted_at=now - before_s, step_times=times)
        stored.publish(Store(store), earlier)
    costs = [compare_since(Store(store), now - 86_400, only).cost for only in ({"cluster": "eos"}, {})]
    assert costs == ["", "local 0.0856 GPU-hours (0.0428 before); 0.0428 GPU-hours on failed runs"]


@pytest.mark.usefixtures("store")
def test_nothing_ran():
    assert compare_since(Store(), time.time() - 60).goodput == ""
