"""Every shipped DAG loads, is named as its workload says, and is short."""

from pathlib import Path
from typing import Any

import pytest

from steptime.recipes.workloads import list_workloads, load_workload
from steptime.settings import shipped

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def dags() -> dict[str, Any]:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(shipped("dags"), bundle_path=Path(shipped("dags")), bundle_name="tests")
    assert bag.import_errors == {}
    found: dict[str, Any] = bag.dags
    return found


def test_each_workload_has_its_dag(dags: dict[str, Any]) -> None:
    assert set(dags) >= {load_workload(name).dag_id for name in list_workloads()}


def test_each_dag_file_is_a_few_lines() -> None:
    for file in shipped("dags").glob("*.py"):
        assert len(file.read_text().splitlines()) <= 15, file


def test_the_report_alone_decides_the_state_of_a_dag_run(dags: dict[str, Any]) -> None:
    for dag in dags.values():
        report = dag.get_task("report")
        assert report.is_teardown
        assert report.on_failure_fail_dagrun
        leaves = [task for task in dag.tasks if not task.downstream_list]
        assert all(task.is_teardown for task in leaves)


def test_clearing_a_wait_clears_its_submit_too(dags: dict[str, Any]) -> None:
    part = dags["llama31"].partial_subset(
        "checkpoint.load.wait", include_upstream=False, include_downstream=False
    )

    assert "checkpoint.load.submit" in part.task_ids
    assert "checkpoint.save.submit" not in part.task_ids
