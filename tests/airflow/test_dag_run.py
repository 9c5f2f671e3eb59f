"""Whole DAG runs in one process, with the stand-in trainer in place of the trainer's environment."""

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from steptime.airflow.dag_builder import training_dag
from steptime.airflow.installation import KEY_PREFIX
from steptime.airflow.result_operators import FAILURE_KEY
from steptime.store.run_queries import Store

# The warning is of Airflow's API server, which runs in the test's process.
pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore:Using `httpx` with")]


def states(dag_run):
    states_by_task = {}
    for ti in dag_run.get_task_instances():
        states_by_task.setdefault(ti.task_id, []).append(str(ti.state))
    return states_by_task


def from_metastore(query, **values):
    """Return the rows of a query in Airflow's database, through Airflow's own connections to it."""
    from airflow.utils.session import create_session

    with create_session() as session:
        return list(session.execute(text(query), values))


def metastore_variables():
    """Return the keys of Airflow's Variables, read from its database."""
    return [key for (key,) in from_metastore("SELECT key FROM variable")]


def xcom_bytes(dag_run):
    """Return the size in bytes of each XCom of a DAG run, by task, map index and key."""
    query = "SELECT task_id, map_index, key, length(value) FROM xcom WHERE run_id = :run_id"
    xcoms = from_metastore(query, run_id=dag_run.run_id)
    return {f"{task_id}[{index}] {key}": size for task_id, index, key, size in xcoms}


def test_performance_runs_and_a_checkpoint_pair_are_published(run_dag):
    dag_run = run_dag(gpus="1,2", checkpoint=True)

    assert dag_run.state == "success", states(dag_run)
    rows = Store().list_runs("steptime_llama3.1-25.04", dag_run.run_id)
    assert sorted(row["label"] for row in rows) == [
        "tiny·fp32·1",
        "tiny·fp32·2",
        "tiny·fp32·2·checkpoint load",
        "tiny·fp32·2·checkpoint save",
    ]
    assert {row["state"] for row in rows} == {"valid"}
    assert parts_of_checkpoint(rows) == [], "a valid load has removed them"
    records = [json.loads(Store().record(row["job_name"])["content"]) for row in rows]
    [key] = [key for key in metastore_variables() if key.startswith(KEY_PREFIX)]
    assert {record["job"]["installation"]["id"] for record in records} == {key.removeprefix(KEY_PREFIX)}
    tasks = {(ti.task_id, ti.map_index): ti for ti in dag_run.get_task_instances()}
    assert tasks["performance.wait", 1].rendered_map_index == "tiny·fp32·2"
    assert tasks["checkpoint.load.wait", 0].rendered_map_index == "tiny·fp32·2·checkpoint load"
    assert {row["task_id"] for row in rows} == {
        "performance.wait",
        "checkpoint.save.wait",
        "checkpoint.load.wait",
    }
    sizes = xcom_bytes(dag_run)
    handles = {
        name: size
        for name, size in sizes.items()
        if name.startswith(("performance.", "checkpoint.")) and name.endswith(" return_value")
    }
    assert len(handles) == 5 * 4, "of submit, wait, parse, validate and publish of each run"
    assert max(handles.values()) < 200, handles


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"keep_checkpoint": True}, marks=pytest.mark.exhaustive),
        {"environment": {"STAND_IN": "nan"}},  # the load is not valid
    ],
)
def test_the_checkpoint_of_a_pair_stays_if_that_is_asked_for_or_its_load_is_not_valid(run_dag, options):
    dag_run = run_dag(gpus="1", checkpoint=True, **options)

    rows = Store().list_runs("steptime_llama3.1-25.04", dag_run.run_id)
    assert parts_of_checkpoint(rows)


def parts_of_checkpoint(rows):
    """Return the large files of the checkpoint that a DAG run saved; the folders always stay."""
    [log] = [Path(row["log_path"]) for row in rows if row["mode"] == "checkpoint_save"]
    assert log.is_file()
    folder = log.parent / "code/nemo_experiments/default/checkpoints"
    assert folder.is_dir()
    return list(folder.rglob("*.distcp"))


def test_a_failed_training_is_read_recorded_and_fails_the_dag_run(run_dag):
    dag_run = run_dag(gpus="1", environment={"STAND_IN": "out_of_memory"})

    assert dag_run.state == "failed"
    assert states(dag_run) == {
        "check_params": ["success"],
        "performance_runs": ["success"],
        "checkpoint_pairs": ["success"],
        "stage": ["success"],
        "performance.submit": ["success"],
        "performance.wait": ["failed"],
        "performance.end": ["success"],
        "performance.parse": ["success"],
        "performance.validate": ["failed"],
        "performance.publish": ["upstream_failed"],
        "report": ["failed"],
    } | {task: ["skipped"] for task in states(dag_run) if task.startswith("checkpoint.")}
    [row] = Store().list_runs("steptime_llama3.1-25.04", dag_run.run_id)
    assert row["state"] == "rejected"
    assert "out of memory" in row["reason"]


def test_a_run_is_refused_with_one_sentence_no_retry_and_a_call_of_the_users_callbacks(
    airflow_database,
    home,
    tmp_path,
    capsys,
    caplog,
):
    def called(number):
        return lambda context: (tmp_path / f"{number}").write_text(str(context["exception"]))  # type: ignore[func-returns-value]

    for callbacks in (called(1), [called(2), called(3)]):
        arguments = {"on_failure_callback": callbacks}
        dag = training_dag("steptime_llama3.1-25.04", workload="llama3.1", default_args=arguments)
        dag_run = dag.test(run_conf={"gpus": "3"})

        [checked] = dag_run.get_task_instances(state=["failed"])
        assert (checked.task_id, checked.try_number) == ("check_params", 1)
        why = checked.xcom_pull(task_ids="check_params", key=FAILURE_KEY)
        assert why.startswith("unknown GPU count '3' of llama3.1-25.04 tiny on cpu: did you mean '2'?")
        others = {name: found for name, found in states(dag_run).items() if name != "check_params"}
        assert {state for found in others.values() for state in found} == {"upstream_failed"}
    assert [path.read_text() for path in tmp_path.glob("[123]")] == [why] * 3
    printed = "".join(capsys.readouterr()) + caplog.text
    assert why in printed
    assert "Traceback" not in printed
    assert not (home / "clusters").exists()
