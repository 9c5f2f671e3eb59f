"""Every shipped DAG loads, has the name that its workload sets, and is short."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from steptime.recipes.workloads import list_workloads, load_workload
from steptime.settings import config_dir, shipped

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


def test_every_form_starts_without_a_checkpoint_as_the_documents_do(dags: dict[str, Any]) -> None:
    starts = {name: dag.params["checkpoint"] for name, dag in dags.items() if "checkpoint" in dag.params}
    assert len(starts) > 20
    assert not any(starts.values()), starts


def test_the_process_of_a_task_builds_its_own_dag_alone(
    dags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "nemotron4")  # as Airflow's task runner does
    bag = DagBag(shipped("dags") / "workloads.py", bundle_path=Path(shipped("dags")), bundle_name="tests")
    assert list(bag.dags) == ["nemotron4"]


def test_a_broken_workload_is_an_import_error_and_lacks_its_own_dag_alone(
    dags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    shutil.copytree(config_dir(), tmp_path / "config")
    broken = tmp_path / "config" / "workloads" / "nemotron-h-25.05.yaml"
    broken.write_text(broken.read_text().replace("title: ", "titel: ").replace("fp8_recipe: d", "fp8: d"))
    copy = tmp_path / "config" / "workloads" / "nemotron4-99.01.yaml"  # has the DAG id of nemotron4-25.04
    copy.write_text(copy.with_stem("nemotron4-25.04").read_text().replace("nemotron4-25.04", copy.stem, 1))
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path / "config"))
    bag = DagBag(shipped("dags"), bundle_path=Path(shipped("dags")), bundle_name="tests")

    [(file, error)] = bag.import_errors.items()
    assert Path(file).name == "config_files.py"
    assert f"{broken}, line 4, titel: unknown field, perhaps 'title' is meant." in error
    assert "trainer.fp8: unknown field" in error
    assert f"{copy}: dag_id 'nemotron4' is also that of nemotron4-25.04: choose another one." in error
    assert set(bag.dags) == set(dags) - {"nemotron_h"}


def test_the_report_alone_decides_the_state_of_a_dag_run(dags: dict[str, Any]) -> None:
    for dag_id, dag in dags.items():
        if dag_id in ("cluster_check", "send_report"):
            continue
        report = dag.get_task("report")
        assert report.is_teardown
        assert report.on_failure_fail_dagrun
        leaves = [task for task in dag.tasks if not task.downstream_list]
        assert all(task.is_teardown for task in leaves)


def test_clearing_a_wait_clears_no_submit(dags: dict[str, Any]) -> None:
    """The wait goes on with its job. If `submit` were a setup, Airflow would clear all mapped instances."""
    for with_downstream in (False, True):
        part = dags["llama31"].partial_subset(
            "checkpoint.save.wait", include_upstream=False, include_downstream=with_downstream
        )
        assert ("checkpoint.save.end" in part.task_ids) is with_downstream
        assert "checkpoint.save.submit" not in part.task_ids
