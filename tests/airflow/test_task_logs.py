"""What people read in the logs of the tasks: what was planned, where it runs, and what was ended."""

import re
from types import SimpleNamespace

import pytest

from steptime.airflow.base import Refused
from steptime.airflow.result_operators import FAILURE_KEY, _first_cause
from steptime.airflow.xcom import PlanNames
from steptime.store.database import close_engines, write_transaction
from steptime.store.run_queries import Store
from steptime.store.schema import version

from .conftest import logged, submit_task, submitted_job, task_of


def test_check_params_shows_the_plan(home, make_context):
    context = make_context() | {"params": {"gpus": "2", "pipeline_parallel": "2"}}

    said = "\n".join(logged(lambda: task_of("check_params").execute(context)))

    assert "llama3.1-25.04 on cluster 'local' (cpu)" in said
    header = "run +experiment +TP·PP·CP·DP +micro batch +global batch +steps +window +limit, s"
    assert re.search(header, said)
    [row] = [line for line in said.splitlines() if "tiny·fp32·2" in line]
    assert "pretrain_llama3.1_tiny_fp32_2" in row
    assert "1·2·1·1" in row
    assert "0-19" in row
    assert "10:19" in row
    assert "at most " in said
    assert "no history and no publication: upper bound only" in said


def test_a_store_that_cannot_take_results_is_refused_before_anything_is_submitted(home, make_context):
    Store().count()
    with write_transaction(Store().url) as connection:
        connection.exec_driver_sql(f"UPDATE {version.name} SET version_num = '0000'")  # noqa: S608
    close_engines()
    context = make_context() | {"params": {"gpus": "2"}}

    with pytest.raises(Refused, match="has the schema of revision 0000"):
        task_of("check_params").execute(context)


def test_submit_and_end_name_the_job_and_its_log(a_run, staged, home, make_context):
    handle = {}
    task = submit_task(a_run(STAND_IN="hang"), staged)
    said = logged(lambda: handle.update(task.execute(make_context())))
    job = submitted_job(handle)["job"]
    assert f"job {job['name']} (id {job['job_id']}) on cluster 'local'" in said
    assert f"its log: {job['log_path']}" in said
    assert any(line.startswith("its script:\n#!") for line in said)

    def end():
        return logged(lambda: task_of("performance.end").execute(make_context()))

    [begins, ended] = end()
    assert begins.endswith("and nobody waits for it: ending it")
    assert ended == f"job {job['name']}: cancelled"
    assert end() == []


@pytest.mark.parametrize("task", ["submit", "end", "publish"])
def test_the_first_task_that_failed_is_the_cause(planned, task):
    plan, task_ids = planned(gpus="1,2"), task_of("report").dag.task_ids
    said = {
        ("performance.publish", 1): "later",
        (f"performance.{task}", 1): "why",
        ("performance.wait", 0): "no",
    }
    ti = SimpleNamespace(
        xcom_pull=lambda *, task_ids, key, map_indexes: (
            said.get((task_ids, map_indexes)) if key == FAILURE_KEY else None
        )
    )

    names = PlanNames.of(plan)
    assert _first_cause(ti, task_ids, names, names.runs[1]) == f"performance.{task} failed: why"
    assert _first_cause(ti, task_ids, names, "another") is None
    said["stage", -1] = "no disk"
    assert _first_cause(ti, task_ids, names, names.runs[1]) == "stage failed: no disk"
