"""Confirmation runs avoid the nodes of the suspected run, if a real Slurm has enough others."""

import itertools
import re
import time

import pytest
from end_to_end.driving import wait_until
from stored import publish, write_node_sweep
from sync_ledger import ledger

from steptime.airflow.base import task_key
from steptime.airflow.sweep.confirming import node_exclusion
from steptime.clusters.base import JobState, JobStatus
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.sweep_planning import Cell, confirmation_cells, expand_cell
from steptime.store.run_queries import Store
from tests.airflow.test_slurm_dag_run import slurm

from .conftest import SweepTask, of_sweep

__all__ = ["slurm"]  # a fixture

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore:Using `httpx`")]


def cell_of(run, **request):
    options = {"workload": "llama3.1", "gpus": "2", "cluster": run.cluster, **request}
    return Cell(
        label="llama3.1·tiny·fp32·2",
        sweep="night",
        entry=0,
        repeat=1,
        gpus=2,
        jobs=1,
        gpu_hours_max=1,
        planned=plan(PlanRequest.model_validate(options)),
    )


@pytest.fixture
def cell(slurm, planned):
    """Return a function that makes a cell of two ranks on the mini Slurm, with these request fields."""
    [run] = planned(gpus="2", cluster="mini-slurm").runs
    return lambda **request: cell_of(run, **request)


@pytest.fixture
def only(slurm):
    """Yield a function that drains all nodes but those given, until the test ends."""

    def leave(nodes):
        slurm.command("scontrol", "update", "nodename=node[1-8]", "state=drain", "reason=test")
        slurm.command("scontrol", "update", f"nodename={nodes}", "state=resume")

    yield leave
    leave("node[1-8]")


def test_a_cluster_that_chooses_no_nodes_says_so(planned):
    [run] = planned(gpus="2").runs
    exclusion = node_exclusion(cell_of(run), "a-host")
    assert exclusion.cluster_options is None
    assert exclusion.words == "on any nodes, as cluster local takes no nodes to leave out"
    assert node_exclusion(cell_of(run), "").words == "on any nodes, as it is not known on which it ran"


@pytest.mark.slurm
def test_other_nodes_are_asked_for_beside_those_that_are_left_out_anyway(cell):
    assert node_exclusion(cell(), "node3") == ({"exclude": "node3"}, "without node3")
    assert node_exclusion(cell(exclude="node[1-2]"), "node3").cluster_options == {"exclude": "node[1-3]"}

    also = cell(additional_slurm_params="exclude=node1;comment=x")
    options = node_exclusion(also, "node3").cluster_options
    [cell] = confirmation_cells(also, 1, checkpoint=False, after=1, cluster_options=options)
    [run] = expand_cell(cell)
    assert run.cluster_options == {"exclude": "node[1,3]", "additional_slurm_params": "comment=x"}


@pytest.mark.slurm
def test_without_enough_other_nodes_any_will_do(cell, only):
    wide = cell(gpus_per_node=1)
    only("node[3-4]")
    # Slurm has to hear from a resumed node before it uses it. Excluding node8, which is drained, changes
    # nothing.
    wait_until("node3 and node4 to answer", lambda: node_exclusion(wide, "node8").cluster_options)
    exclusion = node_exclusion(wide, "node3")
    assert exclusion.cluster_options is None
    assert exclusion.words == (
        "on any nodes, as there are none without node3: "
        "allocation failure: Requested node configuration is not available"
    )
    only("node[3-5]")
    assert wait_until("node5 to answer", lambda: node_exclusion(wide, "node3").cluster_options) == {
        "gpus_per_node": 1,
        "exclude": "node3",
    }


@pytest.mark.slurm
def test_a_cluster_that_cannot_be_asked_gets_the_runs_on_any_nodes(cell, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_MINI_SLURM")
    exclusion = node_exclusion(cell(), "node3")
    assert exclusion.cluster_options is None
    assert "on any nodes, as there are none without node3: Airflow has no connection" in exclusion.words


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
def test_a_sweep_sends_its_confirmation_runs_to_other_nodes(
    check,
    task,
    make_result,
    make_context,
    capsys,
):
    run = make_result().run.model_copy(update={"cluster": "mini-slurm"})
    store = Store()
    for number, seconds in enumerate([0.2, 0.201, 0.2, 0.199, 0.2, 0.201, 0.2, 0.25]):
        at = 1.7e9 + number
        ended = JobStatus(state=JobState.SUCCEEDED, started_at=at, ended_at=at + 1, nodes=(f"node{number}",))
        alone = {"step_times": [seconds] * 20, "submitted_at": at, "status": ended, "run": run}
        result = make_result(f"job-{number}", dag_run_id="by-hand", **alone)
        publish(store, of_sweep(result, "llama3.1·tiny·fp32·2") if number == 7 else result)
    pairs = itertools.combinations([f"node{number}" for number in range(1, 6)], 2)
    swept = {pair: 0.13 if "node2" in pair else 0.1 for pair in pairs}
    wide = make_result(gpus=4).run.model_copy(update={"cluster": "mini-slurm"})
    write_node_sweep(store, make_result, swept, run=wide, submitted_at=time.time())
    runs = [{"workload": "llama3.1", "gpus": 2}]
    context = make_context() | {"ti": SweepTask(map_index=-1)}

    checked = check(runs=runs, cluster="mini-slurm")
    [cell] = checked["cells"]
    staged = {"runs": [{"run": cell["label"], "staged": {}}]}
    confirmations = task("confirm", checked=checked, staged=staged).execute(context)["runs"]

    planned = ledger.planned_runs(task_key(context))
    assert [planned[each["run"]].options["exclude"] for each in confirmations] == ["node[2,7]"] * 2
    nodes = r"without node\[2,7\] \(slow in a node sweep: node2\)"
    decided = rf"slower by 2\d\.\d %: 2 confirmation runs confirm or dismiss it, {nodes}"
    assert re.search(decided, capsys.readouterr().out)
