"""What Airflow's scheduler and API server call about cells; the drills have them called by a real Airflow."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import TaskInstanceState

from steptime.airflow.sweep import hooks as sweep_hooks
from steptime.airflow.sweep.dag import sweep_dag
from steptime.airflow.sweep.hooks import on_task_instance_failed
from steptime.airflow.sweep.runs import CHECK_TASK, RUN_OPERATOR, RUN_TASK


@pytest.fixture
def xcoms(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """What the sweep's tasks have left, by task, map index and key."""
    found: dict[Any, Any] = {}
    monkeypatch.setattr(sweep_hooks, "xcom_of", lambda _, *place: found.get(place))
    return found


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the DAG runs that were marked as failed."""
    ids: list[str] = []
    monkeypatch.setattr(sweep_hooks, "session_of", lambda _: None)
    monkeypatch.setattr(sweep_hooks, "_mark_failed", lambda started, _: ids.append(started.run_id))
    return ids


def instance(*, operator: str = RUN_OPERATOR, map_index: int = 1, conf: dict[str, str] | None = None) -> Any:
    """A row of Airflow's, as its defaults are."""
    run = SimpleNamespace(conf=conf)
    return SimpleNamespace(
        operator=operator,
        task_id=RUN_TASK,
        map_index=map_index,
        dag_run=run,
    )


def test_the_names_are_those_of_the_dags_tasks() -> None:
    dag = sweep_dag("any", sweep="weekly")
    assert dag.get_task(RUN_TASK).task_type == RUN_OPERATOR
    assert dag.has_task(CHECK_TASK)


@pytest.mark.parametrize(
    ("conf", "previous", "expected"),
    [
        (None, None, ["r"]),
        ({"stop_runs_when": "marked failed or cleared"}, None, ["r"]),
        ({"stop_runs_when": "nothing"}, None, []),
        # As the scheduler and workers call it: nobody has asked for anything.
        (None, TaskInstanceState.RUNNING, []),
        (None, TaskInstanceState.DEFERRED, []),
    ],
)
def test_only_a_person_ends_the_run_of_a_cell(
    xcoms: dict[Any, Any],
    ended: list[str],
    conf: dict[str, str] | None,
    previous: TaskInstanceState | None,
    expected: list[str],
) -> None:
    xcoms[RUN_TASK, 1, "started_run"] = {"dag_id": "llama31", "run_id": "r"}
    on_task_instance_failed(previous, instance(conf=conf))
    assert ended == expected


def test_a_cell_that_has_started_nothing_ends_nothing(xcoms: dict[Any, Any], ended: list[str]) -> None:
    on_task_instance_failed(None, instance())
    assert ended == []
