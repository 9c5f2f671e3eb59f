"""Two lines in a DAG file make the DAGs that a team can run, each in the process of its tasks alone."""

import re
import shutil
from pathlib import Path

import pytest
from kept import assert_kept

from steptime import dag_ids, settings
from steptime.airflow.sweep.dag import sweep_dag
from steptime.recipes.sweeps import copy_file
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.settings import shipped

pytestmark = pytest.mark.filterwarnings("default")

ON_ANY_CLUSTER = {
    *("steptime_sweep", "steptime_trial", "steptime_cluster_check", "steptime_send_report"),
}
ON_A_CPU = {dag_ids.dag_id(name) for name in list_workloads() if "cpu" in load_workload(name).gpu_types}
CLUSTER = "name: {0}\nkind: slurm\ngpu_type: {0}\nconnection: {0}\nwork_dir: /work\n"


def read(folder):
    """Return what Airflow reads in a DAG file, or in a folder of such files."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(folder, bundle_path=folder, bundle_name="tests")


@pytest.fixture
def made(tmp_path):
    """Return a function that gives the ids of the DAGs of a DAG file that calls `make_dags`."""

    def made(call):
        (tmp_path / "steptime_dags.py").write_text(f"from steptime.airflow.dags import make_dags\n\n{call}\n")
        bag = read(tmp_path / "steptime_dags.py")
        assert bag.import_errors == {}
        return set(bag.dags)

    return made


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return a team's folder of configuration, with nothing in it."""
    (tmp_path / "config" / "clusters").mkdir(parents=True)
    (tmp_path / "config" / "workloads").mkdir()
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture(scope="module")
def dags():
    bag = read(shipped("dags"))
    assert bag.import_errors == {}
    return bag.dags


def test_a_machine_without_clusters_has_the_workloads_with_a_size_for_it(dags):
    assert set(dags) == ON_ANY_CLUSTER | ON_A_CPU
    families = {name.removeprefix("steptime_").rpartition("-")[0] for name in ON_A_CPU}
    assert families == {"llama3.1", "nemotron4", "nemotron4-340b", "nemotron-h", "nccl"}


def test_a_cluster_adds_the_workloads_that_it_can_run(config, made):
    (config / "clusters" / "gb300.yaml").write_text(CLUSTER.format("gb300"))
    on_gb300 = {dag_ids.dag_id(name) for name in list_workloads() if "gb300" in load_workload(name).gpu_types}
    assert len(on_gb300) > 10
    assert made("make_dags()") == ON_ANY_CLUSTER | ON_A_CPU | on_gb300

    (config / "clusters" / "gb300.yaml").write_text("name: gb300\n  broken")
    assert made("make_dags()") >= on_gb300, "a mistake in a cluster's file takes no DAG away"


def test_a_team_names_its_workloads_and_its_scheduled_sweeps(made, tmp_path):
    assert made('make_dags(["llama3.1", "nemotron3-26.04"], sweeps={"night-8b": "0 2 * * *"})') == {
        "steptime_llama3.1-25.04",
        "steptime_nemotron3-26.04",
        *(
            "steptime_sweep",
            "steptime_sweep_night-8b",
            "steptime_trial",
            "steptime_cluster_check",
            "steptime_send_report",
        ),
    }
    (tmp_path / "steptime_dags.py").write_text(
        'from steptime.airflow.dags import make_dags\nmake_dags(["lama3.1"])\n'
    )
    [error] = read(tmp_path / "steptime_dags.py").import_errors.values()
    assert "unknown workload 'lama3.1': did you mean 'llama3.1-" in error


def test_a_scheduled_sweep_has_its_dag_once_the_team_has_written_it(config, made, tmp_path):
    def by_default():
        return read(tmp_path / "steptime_dags.py").dags["steptime_sweep"].params["sweep"]

    assert not {"steptime_sweep_weekly", "steptime_sweep_nodes"} & made("make_dags([])")
    assert by_default() == "example-weekly"
    copy_file("sweep", "example-weekly", "weekly")
    assert made("make_dags([])") == ON_ANY_CLUSTER | {"steptime_sweep_weekly"}
    assert by_default() == "weekly"


def test_every_id_begins_with_the_name_of_steptime_and_no_name_hides_it(dags):
    for name, dag in dags.items():
        assert name.startswith("steptime_")
        assert dag.dag_display_name == name, "two DAGs never share a name in the list of DAGs"


def test_the_button_that_sends_the_report_starts_its_dag():
    script = Path(settings.__file__).with_name("pages") / "static" / "send.js"
    assert re.search(r'const DAG = "(\w+)"', script.read_text())[1] == dag_ids.SEND_REPORT  # type: ignore[index]


def test_every_form_starts_without_a_checkpoint_as_the_documents_do(dags):
    starts = {name: dag.params["checkpoint"] for name, dag in dags.items() if "checkpoint" in dag.params}
    assert starts.keys() == ON_A_CPU
    assert not any(starts.values()), starts


@pytest.mark.parametrize(
    "dag_id",
    ["steptime_nemotron4-25.04", "steptime_sweep_nodes", "steptime_send_report", "steptime_gpt-oss-26.02"],
)
def test_the_process_of_a_task_makes_its_own_dag_alone(dag_id, monkeypatch):
    """Also one that no configured cluster can run any more: its tasks go on."""
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)  # as Airflow's task runner does
    assert list(read(shipped("dags")).dags) == [dag_id]


def test_a_broken_workload_is_an_import_error_and_lacks_its_own_dag_alone(dags, config):
    broken = config / "workloads" / "nemotron-h-25.05.yaml"
    shutil.copy(shipped("config") / "workloads" / broken.name, broken)
    broken.write_text(broken.read_text().replace("title: ", "titel: ").replace("fp8_recipe: d", "fp8: d"))
    bag = read(shipped("dags"))

    [(file, error)] = bag.import_errors.items()
    assert Path(file).name == "steptime_config_files.py"
    assert f"{broken}, line 4, titel: unknown field, perhaps 'title' is meant." in error
    assert "trainer.fp8: unknown field" in error
    assert set(bag.dags) == set(dags) - {"steptime_nemotron-h-25.05"}


def shape(dag):
    """Return what a person and Airflow see of a DAG: its form, and how its tasks follow each other."""
    lines = [
        f"== {dag.dag_id}: {dag.description}",
        f"schedule {getattr(dag.timetable, 'expression', None)}, catchup {dag.catchup}, "
        f"paused {dag.is_paused_upon_creation}, {dag.max_active_runs} at once, tags {sorted(dag.tags)}",
    ]
    for name in sorted(dag.params):
        param = dag.params.get_param(name)
        shown = repr(param.value) if param.has_value else "no default"
        lines.append(f"param {name}: {shown}; {param.schema}; {param.description}")
    for task in sorted(dag.tasks, key=lambda task: task.task_id):
        of_it = [
            f"after {', '.join(sorted(task.upstream_task_ids)) or 'nothing'}",
            f"if {task.trigger_rule}",
            f"{task.retries} retries after {task.retry_delay.total_seconds():g} s",
            *(["teardown"] if task.is_teardown else []),
            *(["decides"] if task.on_failure_fail_dagrun else []),
            *(callback.__name__ for callback in task.on_failure_callback),
            *(f"{field}={_source(getattr(task, field, None))}" for field in task.template_fields),
            *(f"to {asset.uri}" for asset in task.outlets),
        ]
        lines.append(f"{task.task_id} ({type(task).__name__}): {'; '.join(of_it)}")
    return "\n".join(lines) + "\n"


def _source(value):
    """Return from which task a templated field comes, and which part of what it returned."""
    text = str(value)
    if found := re.search(r"xcom_pull\(task_ids='([\w.]+)'", text):
        return found[1]
    if found := re.search(r"<Task\(\w+\): ([\w.]+)>.*?(?:_key='(\w+)')?\)$", text):
        return f"each of {found[1]}, {found[2]}"
    return text


def test_dags_are_as_reviewed(dags):
    """After an intended change, rewrite the text with STEPTIME_UPDATE_GOLDEN=1 and review `git diff`."""
    weekly = sweep_dag("steptime_sweep_weekly", sweep="weekly", cron="0 6 * * 1")
    shown = ["steptime_llama3.1-25.04", *sorted(ON_ANY_CLUSTER)]
    scheduled = shape(weekly).partition("approve (")[0]  # its tasks are those of `steptime_sweep`
    assert_kept("dags.txt", "\n".join([*(shape(dags[name]) for name in shown), scheduled]))


def test_the_report_alone_decides_the_state_of_a_dag_run(dags):
    for dag_id, dag in dags.items():
        if dag_id in (dag_ids.CLUSTER_CHECK, dag_ids.SEND_REPORT):
            continue
        report = dag.get_task("report")
        assert report.is_teardown
        assert report.on_failure_fail_dagrun
        leaves = [task for task in dag.tasks if not task.downstream_list]
        assert all(task.is_teardown for task in leaves)


def test_clearing_a_wait_clears_no_submit(dags):
    """The wait goes on with its job. If `submit` were a setup, Airflow would clear all mapped instances."""
    for with_downstream in (False, True):
        part = dags["steptime_llama3.1-25.04"].partial_subset(
            "checkpoint.save.wait", include_upstream=False, include_downstream=with_downstream
        )
        assert ("checkpoint.save.end" in part.task_ids) is with_downstream
        assert "checkpoint.save.submit" not in part.task_ids
