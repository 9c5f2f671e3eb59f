"""Fixtures for sweeps: a sweep to check, and tasks whose supervisor answers as Airflow's does."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from steptime.airflow.sweep.dag import sweep_dag
from tests.airflow.conftest import TaskInstance


@dataclass
class SweepTask(TaskInstance):
    """A task instance of a sweep's DAG run, with its XComs."""

    dag_id: str = "steptime_sweep_weekly"
    xcoms: dict[Any, Any] = field(default_factory=dict)

    def xcom_pull(self, *, key, task_ids=None, map_indexes=None, **_):
        return self.xcoms.get((task_ids, map_indexes, key), self.pushed.get(key))


def of_sweep(result, cell):
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
def write_sweep(home):
    """Return a function that writes the sweep `night`, the only one configured, with these fields."""
    folder = Path(home).parent / "config" / "sweeps"
    folder.unlink()
    folder.mkdir()

    def write(**fields):
        runs = [{"workload": "llama3.1", "gpus": [1, 2]}]
        content = {"name": "night", "gpu_hours_max": 10, "runs": runs, **fields}
        (folder / "night.yaml").write_text(json.dumps(content))

    write()
    return write


@pytest.fixture
def task(write_sweep):
    """Return a function that makes a task of the sweep DAG, with these rendered fields, as workers do."""
    dag = sweep_dag("steptime_sweep_weekly", sweep="night")

    def task(task_id, **fields):
        operator = dag.get_task(task_id).prepare_for_execution()
        for name, value in fields.items():
            assert name in operator.template_fields
            setattr(operator, name, value)
        return operator

    return task


@pytest.fixture
def check(write_sweep, make_context, task):
    """Return a function that checks a sweep `night` with these fields as the DAG's first task."""

    def check(*, conf=None, pushed=None, **fields):
        write_sweep(**fields)
        context = make_context() | {"ti": SweepTask(pushed={} if pushed is None else pushed)}
        context["params"] = {"sweep": "night"}
        context["dag_run"].conf = conf
        return task("check_sweep").execute(context)

    return check
