"""The check of a cluster as a task: its log has each finding, and it fails if a check fails."""

import pytest
from called import has_python_311

from steptime.airflow.base import Refused
from steptime.airflow.cluster_check import cluster_check_dag


@pytest.mark.skipif(not has_python_311(), reason="the trainer's packages need a Python 3.11")
def test_the_task_fails_if_a_check_fails(make_context, tmp_path, monkeypatch):
    task = cluster_check_dag("cluster_check").get_task("check_cluster")
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    task.execute({**make_context(), "params": {"cluster": "local", "workload": None}})

    (tmp_path / "file").touch()
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(Refused, match=r"cluster local failed 1 of \d+ checks: work_dir"):
        task.execute({**make_context(), "params": {"cluster": "local", "workload": None}})
    with pytest.raises(Refused, match="unknown cluster 'new'"):
        task.execute({**make_context(), "params": {"cluster": "new", "workload": None}})
