"""A user's own DAG file of three lines, whose arguments reach Airflow."""

import pytest

pytestmark = pytest.mark.filterwarnings("default")

SHORT = """\
from steptime.airflow.dag_builder import training_dag

dag = training_dag("nightly", workload="llama3.1", defaults={"gpus": "1"}, schedule="0 3 * * *")
"""
LONG = """\
from datetime import datetime, timedelta

from steptime.airflow.dag_builder import training_dag


def tell(context):
    print(context)


dag = training_dag(
    "ours",
    workload="nemotron4",
    schedule=timedelta(hours=6),
    start_date=datetime(2026, 1, 1),
    default_args={"retries": 5, "on_failure_callback": tell, "owner": "ada", "pool": "benchmarks"},
    tags=["night"],
    on_failure_callback=tell,
    on_success_callback=tell,
    description="Ours",
    max_active_runs=1,
)
"""


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a DAG file as Airflow does and returns its one DAG."""
    from airflow.dag_processing.dagbag import DagBag

    def read(text):
        (tmp_path / "mine.py").write_text(text)
        bag = DagBag(tmp_path, bundle_path=tmp_path, bundle_name="tests")
        assert bag.import_errors == {}
        [dag] = bag.dags.values()
        return dag

    return read


def test_three_lines_are_a_dag(read):
    dag = read(SHORT)
    assert (dag.dag_id, dag.timetable.expression, dag.catchup) == ("nightly", "0 3 * * *", False)
    assert dag.params["gpus"] == "1"
    assert {task.owner for task in dag.tasks} == {"airflow"}
    # Airflow checks each field of each copy whenever it stores the DAG: half a second of CPU a file.
    assert not [task.task_id for task in dag.tasks if task.params], "the form is the DAG's alone"


def test_what_is_passed_on_reaches_dag_and_tasks(read):
    dag = read(LONG)
    assert dag.tags == {"steptime", "nemotron4-25.04", "night"}
    assert (dag.description, dag.max_active_runs, dag.start_date.year) == ("Ours", 1, 2026)
    assert dag.has_on_failure_callback
    assert dag.has_on_success_callback
    submit = dag.get_task("checkpoint.save.submit")
    assert (submit.owner, submit.pool, submit.retries) == ("ada", "benchmarks", 5)
    assert submit.has_on_failure_callback
