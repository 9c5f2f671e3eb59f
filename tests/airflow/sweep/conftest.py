"""Fixtures for sweeps: a sweep to check, and tasks whose supervisor answers as Airflow's does."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from steptime.airflow.sweep.dag import sweep_dag
from steptime.store.run_models import Result
from tests.airflow.conftest import MakeContext, TaskInstance

CheckSweep = Callable[..., dict[str, Any]]
MakeTask = Callable[..., Any]
Report = Callable[..., Any]
WriteSweep = Callable[..., None]


@dataclass
class SweepTask(TaskInstance):
    """A task instance of a sweep's DAG run, with its XComs."""

    dag_id: str = "steptime_sweep_weekly"
    xcoms: dict[Any, Any] = field(default_factory=dict)

    def xcom_pull(
        self, *, key: str, task_ids: str | None = None, map_indexes: int | None = None, **_: str
    ) -> Any:
        return self.xcoms.get((task_ids, map_indexes, key), self.pushed.get(key))


def of_sweep(result: Result, cell: str) -> Result:
    """Return the result as a run of that cell of the sweep `night`, in the DAG run of `SweepTask`."""
    submitted = result.submitted
    of_it = {"dag_id": SweepTask.dag_id, "dag_run_id": SweepTask.run_id, "sweep": "night"}
    provenance = submitted.provenance.model_copy(update=of_it)
    run = submitted.run.model_copy(update={"cell": cell})
    record = json.loads(result.record)
    record["run"]["cell"] = cell
    return result.model_copy(
        update={
            "submitted": submitted.model_copy(update={"provenance": provenance, "run": run}),
            "record": json.dumps(record),
        }
    )


@pytest.fixture
def write_sweep(home: Path) -> Callable[..., None]:
    """Return a function that writes the sweep `night`, the only one configured, with these fields."""
    folder = Path(home).parent / "config" / "sweeps"
    folder.unlink()
    folder.mkdir()

    def write(**fields: Any) -> None:
        runs = [{"workload": "llama3.1", "gpus": [1, 2]}]
        content = {"name": "night", "gpu_hours_max": 10, "runs": runs, **fields}
        (folder / "night.yaml").write_text(json.dumps(content))

    write()
    return write


@pytest.fixture
def task(write_sweep: WriteSweep) -> Callable[..., Any]:
    """Return a function that makes a task of the sweep DAG, with these rendered fields, as workers do."""
    dag = sweep_dag("steptime_sweep_weekly", sweep="night")

    def task(task_id: str, **fields: Any) -> Any:
        operator = dag.get_task(task_id).prepare_for_execution()
        for name, value in fields.items():
            assert name in operator.template_fields
            setattr(operator, name, value)
        return operator

    return task


@pytest.fixture
def check(
    write_sweep: WriteSweep, make_context: MakeContext, task: MakeTask
) -> Callable[..., dict[str, Any]]:
    """Return a function that checks a sweep `night` with these fields as the DAG's first task."""

    def check(
        *, conf: dict[str, Any] | None = None, pushed: dict[str, Any] | None = None, **fields: Any
    ) -> dict[str, Any]:
        write_sweep(**fields)
        context = make_context() | {"ti": SweepTask(pushed={} if pushed is None else pushed)}
        context["params"] = {"sweep": "night"}
        context["dag_run"].conf = conf
        checked: dict[str, Any] = task("check_sweep").execute(context)
        return checked

    return check
