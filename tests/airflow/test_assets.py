"""Assets: another DAG reads what came of a run from the event that publishing it left."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steptime.airflow.assets import finished_sweep, published_results
from steptime.errors import UserError

from .conftest import RunDag

# What Airflow's own API server, which runs in the test's process, warns of.
pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore:Using `httpx` with")]


_CONSUMER = """\
import json
from pathlib import Path

from airflow.sdk import DAG, BaseOperator

from steptime.airflow.assets import published_results

RESULTS = published_results("llama3.1")


class Consume(BaseOperator):
    def execute(self, context):
        extra = context["inlet_events"][RESULTS][-1].extra
        Path({into!r}).write_text(json.dumps(extra))


with DAG("after_llama31", schedule=[RESULTS]) as dag:
    Consume(task_id="consume", inlets=[RESULTS])
"""


@pytest.fixture
def consumer(tmp_path: Path) -> Iterator[Any]:
    """Somebody else's DAG, which writes what the newest event of the asset says."""
    from airflow.dag_processing.dagbag import DagBag

    file = Path(os.environ["AIRFLOW_HOME"], "dags", "after_llama31.py")
    file.write_text(_CONSUMER.format(into=str(tmp_path / "extra.json")))
    bag = DagBag(file, bundle_path=file.parent, bundle_name="tests")
    assert bag.import_errors == {}
    yield bag.dags["after_llama31"]
    file.unlink()


def test_another_dag_reads_the_numbers_of_a_published_run(
    run_dag: RunDag, consumer: Any, tmp_path: Path
) -> None:
    dag_run = run_dag(gpus="1")

    assert consumer.test().state == "success"

    extra = json.loads((tmp_path / "extra.json").read_text())
    assert (extra["label"], extra["state"], extra["verdict"]) == (
        "tiny·fp32·1",
        "valid",
        "insufficient history",
    )
    assert (extra["dag_id"], extra["dag_run_id"]) == ("llama31", dag_run.run_id)
    assert extra["step_time_mean_s"] > 0
    assert extra["mfu_percent"] > 0
    assert extra["against_publication"] is None, "nobody has published a step time of tiny"


def test_assets_are_known_by_what_they_are_of() -> None:
    assert published_results("llama3.1").uri == "x-steptime://results/llama3.1-25.04"
    assert finished_sweep("weekly").name == "steptime_sweep_weekly"
    with pytest.raises(UserError, match="unknown workload 'llama4'"):
        published_results("llama4")
