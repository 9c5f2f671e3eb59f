"""How tasks keep to budgets: reservations of runs that are over are returned before a run is refused."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from stored import as_planned
from sync_ledger import ledger

from steptime.airflow import budgets
from steptime.airflow.base import Refused
from steptime.airflow.installation import this_installation
from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import OutOfReach, UserError
from steptime.store.budgets import BudgetExceeded, budget_balances, list_reserving

from .conftest import (
    TaskInstance,
    logged,
    names_of,
    noted,
    submit_task,
    task_of,
)

ASKED = 600 / 3600
"""GPU-hours of a run on one process, by the workload's time limit."""


class Asked:
    """A stand-in for a cluster, which answers with given states of jobs."""

    name = "local"

    def __init__(self):
        self.jobs = {}
        self.polled = []
        self.away = False

    async def poll(self, names):
        names = list(names)
        self.polled.append(names)
        return {name: self.jobs.get(name, JobStatus(state=JobState.RUNNING)) for name in names}

    @asynccontextmanager
    async def open(self, config, _connections):
        assert config.name == self.name
        if self.away:
            raise OutOfReach("no route to host")
        yield self


@pytest.fixture
def asked(home, monkeypatch):
    found = Asked()
    monkeypatch.setattr(budgets, "open_cluster", found.open)
    return found


@pytest.fixture
def one(planned):
    return planned(gpus="1").runs[0]


@pytest.fixture
def reserve(make_context, one):
    """Return a function that reserves a run while DAG runs have these states; it returns the task's log."""

    def reserve(dag_run, **dag_runs):
        known = {f"steptime_llama3.1-25.04/{run_id}": state for run_id, state in dag_runs.items()}
        context = make_context() | {"ti": TaskInstance(run_id=dag_run, dag_runs=known)}
        return logged(lambda: budgets.store_plan(task_of("check_params"), context, [as_planned(one)]))

    return reserve


def holders():
    return {owner.dag_run_id for owner in list_reserving(this_installation().id, ["local"])}


def committed():
    [balance] = budget_balances(["local"])
    return balance.committed_gpu_hours


def test_a_plan_is_reserved_and_the_task_says_how_the_budget_stands(asked, reserve, budget):
    assert reserve("unlimited") == []
    budget(10 * ASKED)
    [said] = reserve("first")
    assert said.endswith("0.17 committed, this plan at most 0.17"), "also what was planned without a budget"
    assert holders() == {"unlimited", "first"}
    assert asked.polled == [], "nobody is asked where there is enough"


def test_plans_of_dag_runs_that_are_over_are_given_back_and_those_of_live_ones_are_not(
    asked, reserve, budget
):
    budget(2.5 * ASKED)
    for name in ("first", "second"):
        reserve(name)
    with pytest.raises(BudgetExceeded):
        reserve("third", first="running", second="queued")
    assert holders() == {"first", "second"}
    reserve("third", first="failed", second="queued")
    assert holders() == {"second", "third"}
    reserve("fourth", third="running")
    assert holders() == {"third", "fourth"}, "the second was deleted"


def test_a_plan_takes_what_jobs_that_have_ended_did_not(asked, reserve, budget, submission):
    budget(1.5 * ASKED)
    name = submission()["job"]["name"]
    with pytest.raises(BudgetExceeded):
        reserve("second")
    asked.jobs[name] = JobStatus(state=JobState.SUCCEEDED, started_at=1e9, ended_at=1e9 + 36)
    asked.away = True
    with pytest.raises(BudgetExceeded):
        reserve("second")
    asked.away = False
    assert reserve("second")
    assert asked.polled == [[name]] * 2
    found = noted(name)
    assert (found.state, found.ended_at) == (JobState.SUCCEEDED, 1e9 + 36)


def test_a_plan_above_the_budget_is_refused_and_what_was_not_submitted_is_given_back(
    planned, make_context, budget
):
    path = budget(1.5 * ASKED)

    def check_params(**params):
        task_of("check_params").execute(make_context() | {"params": params})

    with pytest.raises(Refused, match=f"raise gpu_hours_per_month in {path}"):
        check_params(gpus="1", repeats=2)
    assert committed() == 0
    check_params(gpus="1")
    assert committed() == pytest.approx(ASKED)
    with pytest.raises(AirflowSkipException, match="no job was submitted"):
        task_of("performance.parse").execute(make_context())
    with pytest.raises(AirflowFailException, match="have no valid result"):
        task_of("report", plan=names_of(planned())).execute(make_context())
    assert committed() == 0


@pytest.mark.long
@pytest.mark.usefixtures("home")
def test_a_job_is_submitted_once_what_has_ended_is_given_back(a_run, staged, make_context, budget, cluster):
    tasks = [submit_task(a_run().model_copy(update={"repeat": repeat}), staged) for repeat in (1, 2)]
    budget(1.5 * ASKED)

    def submit(map_index):
        handle = tasks[map_index].execute(make_context(map_index=map_index))
        return handle["job"]

    first = submit(0)
    with pytest.raises(AirflowFailException, match="raise gpu_hours_per_month"):
        submit(1)
    asyncio.run(cluster.cancel(first))
    second = submit(1)
    assert [job.name for job in ledger.open_jobs("local")] == [second]


@pytest.mark.usefixtures("home")
def test_a_job_that_its_cluster_refuses_is_not_committed_any_more(submission, monkeypatch, budget):
    async def refuses(_self, _spec):
        raise UserError("there is no such partition.")

    budget(2.5 * ASKED)
    monkeypatch.setattr(LocalCluster, "submit", refuses)

    with pytest.raises(AirflowFailException, match="no such partition"):
        submission()

    assert committed() == 0
