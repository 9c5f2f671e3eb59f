"""Why a DAG run has no results, from Airflow's own tables, in memory."""

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger  # noqa: F401 (its table is named by that of tasks)
from airflow.models.xcom import XComModel
from sqlalchemy.orm import Session

from steptime.web.dag_runs import FAILURE_KEY, first_failure, why_without_results

DAG = {"dag_id": "llama31", "run_id": "manual__1"}
NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session of empty tables, which Airflow gives to whoever asks for one."""
    engine = sqlalchemy.create_engine("sqlite://")
    for model in (DagRun, TaskInstance, XComModel):
        model.__table__.create(engine)
    with Session(engine) as opened:
        monkeypatch.setattr("airflow.utils.session.create_session", lambda: nullcontext(opened))
        yield opened


def ended(session: Session, task_id: str, minute: int, state: str = "failed", **other: str) -> None:
    row = {"task_id": task_id, "pool": "default", "state": state, "map_index": -1}
    row |= {"end_date": NOON + timedelta(minutes=minute)} | DAG | other
    session.execute(sqlalchemy.insert(TaskInstance.__table__).values(row))


def left(session: Session, task_id: str, sentence: str, **other: str | int) -> None:
    row = {"dag_run_id": 1, "task_id": task_id, "key": FAILURE_KEY, "map_index": -1, "value": sentence}
    session.execute(sqlalchemy.insert(XComModel.__table__).values(row | DAG | other))


def dag_run(session: Session, state: str) -> None:
    row = {"id": 1, "run_type": "manual", "state": state, "run_after": NOON, "log_template_id": 1} | DAG
    session.execute(sqlalchemy.insert(DagRun.__table__).values(row))


def test_the_task_that_failed_first_is_named_with_its_sentence(session: Session) -> None:
    dag_run(session, "failed")
    ended(session, "submit", 3)
    ended(session, "check_params", 2)
    ended(session, "begin", 1, "success")
    ended(session, "earlier", 0, dag_id="other")
    ended(session, "earlier", 0, run_id="other")
    left(session, "check_params", "of another of its kind", map_index=1)
    left(session, "check_params", "no failure", key="return_value")
    left(session, "check_params", "of another DAG", dag_id="other", dag_run_id=2)
    left(session, "check_params", "of another run", run_id="other", dag_run_id=3)

    nameless = "check_params failed: its log has the reason"
    assert first_failure(*DAG.values(), session) == nameless
    left(session, "submit", "no queue")
    left(session, "check_params", "no size 'x'")
    assert first_failure(*DAG.values(), session) == "check_params failed: no size 'x'"
    why = why_without_results("llama31", "manual__1")
    assert why == "ended without results: check_params failed: no size 'x'"


def test_without_a_failed_task_there_is_no_more_to_say(session: Session) -> None:
    dag_run(session, "success")
    ended(session, "begin", 1, "success")
    assert why_without_results("llama31", "manual__1") == "ended without results"


def test_of_a_run_that_goes_on_or_is_unknown_nothing_is_known(session: Session) -> None:
    dag_run(session, "running")
    ended(session, "check_params", 1)
    assert why_without_results("llama31", "manual__1") is None
    assert why_without_results("llama31", "manual__2") is None
