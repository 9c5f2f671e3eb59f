"""How tasks commit to budgets: what is over is given back before anybody is refused."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from steptime.airflow import budgets
from steptime.clusters.base import Cluster, Job, JobSpec, JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import OutOfReach, UserError
from steptime.recipes.models import Run
from steptime.recipes.planning import Plan
from steptime.results import charges
from steptime.results.budgets import BudgetExceeded
from steptime.runs import budgets as job_budgets

ASKED = 600 / 3600
"""GPU-hours of a run on one process, by the workload's time limit."""


class Asked:
    """A cluster that knows how jobs stand, and Airflow that knows how DAG runs do."""

    name = "local"

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.dag_runs: dict[str, str] = {}
        self.polled: list[list[str]] = []
        self.away = False

    async def poll(self, names: Iterable[str]) -> dict[str, JobStatus]:
        names = list(names)
        self.polled.append(names)
        return {name: self.jobs.get(name, JobStatus(state=JobState.RUNNING)) for name in names}

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator["Asked"]:
        assert name == self.name
        if self.away:
            raise OutOfReach("no route to host")
        yield self


@pytest.fixture
def asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(budgets, "open_cluster", found.open)
    monkeypatch.setattr(budgets, "state_of_dag_run", lambda *of: found.dag_runs.get("/".join(of)))
    return found


@pytest.fixture
def one(planned: Callable[..., Plan]) -> Run:
    return planned(gpus="1").runs[0]


def commit(run: Run, dag_run: str) -> list[str]:
    said: list[str] = []
    budgets.commit_plan({dag_run: [run]}, held_by=dag_run, info=said.append)
    return said


def committed() -> tuple[set[str], set[str]]:
    return charges.open_commitments("local")


def ended(hours: float) -> JobStatus:
    return JobStatus(state=JobState.SUCCEEDED, started_at=1e9, ended_at=1e9 + hours * 3600)


def test_a_plan_is_committed_and_the_task_says_how_the_budget_stands(
    asked: Asked, one: Run, budget: Callable[[float], Path]
) -> None:
    assert commit(one, "llama31/unlimited") == []
    budget(10 * ASKED)
    [said] = commit(one, "llama31/first")
    assert said.endswith("0.00 committed, this plan at most 0.17")
    assert committed() == (set(), {"llama31/first"})
    assert asked.polled == [], "nobody is asked where there is enough"


def test_plans_of_dag_runs_that_are_over_are_given_back_and_those_of_live_ones_are_not(
    asked: Asked, one: Run, budget: Callable[[float], Path]
) -> None:
    budget(2.5 * ASKED)
    for name, state in (("first", "running"), ("second", "queued")):
        commit(one, f"llama31/{name}")
        asked.dag_runs[f"llama31/{name}"] = state
    with pytest.raises(BudgetExceeded):
        commit(one, "llama31/third")
    assert committed() == (set(), {"llama31/first", "llama31/second"})
    for over in ("success", "failed", None):
        if over is None:
            del asked.dag_runs["llama31/first"]
        else:
            asked.dag_runs["llama31/first"] = over
        assert commit(one, "llama31/third")
        assert committed() == (set(), {"llama31/second", "llama31/third"})
        charges.withdraw_plans(["llama31/third"], ["local"])
        commit(one, "llama31/first")


def test_a_plan_takes_what_jobs_that_have_ended_did_not(
    asked: Asked, one: Run, budget: Callable[[float], Path]
) -> None:
    budget(2.5 * ASKED)
    for name in ("b", "a"):
        asyncio.run(job_budgets.commit_job(cluster(asked), one, name, dag_run=f"llama31/{name}"))
    with pytest.raises(BudgetExceeded):
        commit(one, "llama31/third")
    asked.jobs["a"] = ended(0.01)
    assert commit(one, "llama31/third")
    assert asked.polled == [["a", "b"]] * 2
    assert committed() == ({"b"}, {"llama31/third"})


def test_a_cluster_that_cannot_be_asked_gives_nothing_back_and_is_named(
    asked: Asked, one: Run, budget: Callable[[float], Path]
) -> None:
    budget(1.5 * ASKED)
    asyncio.run(job_budgets.commit_job(cluster(asked), one, "a", dag_run="llama31/a"))
    asked.jobs["a"], asked.away = ended(0.01), True
    said: list[str] = []
    with pytest.raises(BudgetExceeded):
        budgets.commit_plan({"llama31/b": [one]}, held_by="llama31/b", info=said.append)
    assert said == [
        "cluster 'local' cannot be asked which of its jobs have ended: no route to host",
    ]


def test_a_job_is_committed_once_what_has_ended_is_given_back(
    asked: Asked, one: Run, budget: Callable[[float], Path]
) -> None:
    def job(name: str) -> None:
        asyncio.run(job_budgets.commit_job(cluster(asked), one, name, dag_run=f"llama31/{name}"))

    budget(1.5 * ASKED)
    job("a")
    assert asked.polled == []
    with pytest.raises(BudgetExceeded):
        job("b")
    asked.jobs["a"] = ended(0.01)
    job("b")
    assert committed() == ({"b"}, set())


def test_of_no_jobs_no_cluster_is_asked(asked: Asked, budget: Callable[[float], Path]) -> None:
    budget(ASKED)
    asyncio.run(job_budgets.settle_ended(cluster(asked)))
    assert asked.polled == []


def cluster(asked: Asked) -> Cluster:
    found: Any = asked
    return found  # type: ignore[no-any-return]


@pytest.mark.usefixtures("home")
def test_a_job_that_its_cluster_refuses_is_not_committed_any_more(
    submission: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    budget: Callable[[float], Path],
) -> None:
    async def refuses(_self: LocalCluster, _spec: JobSpec) -> Job:
        raise UserError("there is no such partition.")

    budget(2.5 * ASKED)
    monkeypatch.setattr(LocalCluster, "submit", refuses)

    with pytest.raises(AirflowFailException, match="no such partition"):
        submission()

    assert committed()[0] == set()
    [balance] = charges.budget_balances(["local"])
    assert balance.committed_gpu_hours == 0
