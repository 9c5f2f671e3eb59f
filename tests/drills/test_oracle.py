"""The oracle sees what it is there for: each of these would be a fault of the product."""

from collections.abc import Callable
from typing import Any

import pytest

from drills.evidence import AirflowTask, Evidence, StoredRun
from drills.oracle import STEPS, check, outcomes
from steptime.clusters.slurm.job_records import JobRecord

RUN = "manual__1"


def job(name: str = "pretrain-abc-1", **fields: Any) -> JobRecord:
    whole = {
        "job_id": "7",
        "name": name,
        "state": "COMPLETED",
        "exit_code": 0,
        "signal": 0,
        "submitted_at": 100.0,
        "started_at": 101.0,
        "ended_at": 110.0,
        "nodes": ("node1",),
        "reason": "",
        "directory": "/work/1",
        **fields,
    }
    return JobRecord.model_validate(whole)


def row(name: str = "pretrain-abc-1", **fields: Any) -> StoredRun:
    whole = StoredRun(name, RUN, "valid", None, "succeeded", STEPS)
    return whole._replace(**fields)


WAITED = AirflowTask(RUN, "performance.wait", "success", None)
GOOD = Evidence(
    jobs=[job()],
    queued=[],
    trained={"pretrain-abc-1": 1},
    stored=[row()],
    tasks=[WAITED],
    dag_runs={RUN: "success"},
)
SECOND = job("pretrain-abc-2", job_id="8", submitted_at=111.0, ended_at=120.0)
CANCELLED = job(state="CANCELLED")


def test_a_good_run_and_a_second_attempt_after_the_first_has_ended_are_green() -> None:
    check(GOOD)
    assert outcomes(GOOD) == {RUN: "valid"}
    check(GOOD._replace(jobs=[CANCELLED, SECOND], stored=[row("pretrain-abc-2")]))


def test_what_is_cancelled_failed_or_deleted_is_called_so() -> None:
    without = GOOD._replace(stored=[], tasks=[WAITED._replace(state="failed")], dag_runs={RUN: "failed"})
    assert outcomes(without._replace(jobs=[CANCELLED])) == {RUN: "cancelled"}
    assert outcomes(without._replace(jobs=[job(state="NODE_FAIL")])) == {RUN: "failed"}
    assert outcomes(without._replace(jobs=[])) == {RUN: "failed"}
    assert outcomes(without._replace(jobs=[CANCELLED], dag_runs={}, tasks=[])) == {"": "cancelled"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: {"queued": [job(state="RUNNING")]}, "orphans are left"),
        (lambda: {"jobs": [job(ended_at=None, state="RUNNING")]}, "never ends"),
        (lambda: {"jobs": [job(), job(job_id="8", submitted_at=120.0)]}, "submitted twice"),
        (lambda: {"jobs": [job(ended_at=112.0), SECOND]}, "two lived at once"),
        (lambda: {"trained": {"pretrain-abc-1": 2}}, "trained 2 times"),
        (
            lambda: {"tasks": [WAITED, AirflowTask(RUN, "performance.parse", "running", None)]},
            "parse is running",
        ),
        (lambda: {"tasks": [WAITED, WAITED._replace(state="removed")]}, "tasks were taken from a DAG run"),
        (lambda: {"tasks": [WAITED._replace(trigger_id=3)]}, "triggers are left"),
        (lambda: {"stored": []}, "has no valid result"),
        (lambda: {"dag_runs": {RUN: "failed"}}, "failed, and has a valid result"),
        (lambda: {"stored": [row(), row("other-1")]}, "which the accounting does not have"),
        (lambda: {"stored": [row(steps=STEPS - 1)]}, "steps are stored of"),
        (lambda: {"stored": [row(job_state="failed")]}, "'failed' in the store, and COMPLETED"),
        (lambda: {"jobs": [CANCELLED]}, "say success"),
        (
            lambda: {"jobs": [CANCELLED], "tasks": [WAITED._replace(state="failed")]},
            "'succeeded' in the store, and CANCELLED",
        ),
        (
            lambda: {"jobs": [job(), SECOND], "stored": [row(), row("pretrain-abc-2")]},
            "several valid results",
        ),
        (lambda: {"tasks": [WAITED._replace(state="failed")]}, "0 that waited say success"),
    ],
)
def test_each_breach_is_seen(change: Callable[[], dict[str, Any]], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check(GOOD._replace(**change()))
