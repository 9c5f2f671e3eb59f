"""Budgets in whole DAG runs: refused before anything is submitted, and every job counts, however it ended."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime.airflow.installation import KEY_PREFIX
from steptime.clusters.base import StagedFiles
from steptime.errors import SystemFailure, UserError
from steptime.recipes.planning import Plan
from steptime.results.budgets import BudgetBalance, Owner, budget_balances, reserve
from steptime.results.store import Store

from .test_dag_run import states

# What Airflow's own API server, which runs in the test's process, warns of.
pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore:Using `httpx` with")]

ASKED = 600 / 3600
"""GPU-hours of a run on one process, by the workload's time limit."""


def balance() -> BudgetBalance:
    [found] = budget_balances(["local"])
    return found


def test_a_plan_above_the_budget_submits_nothing_and_what_was_not_submitted_is_given_back(
    run_dag: Callable[..., Any],
    budget: Callable[[float], Path],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def no_disk(*_: object) -> StagedFiles:
        committed.append(balance().committed_gpu_hours)
        raise SystemFailure("the disk is full")

    committed: list[float] = []
    monkeypatch.setattr("steptime.staging.stage.stage", no_disk)
    monkeypatch.setattr("steptime.airflow.dag_builder.RETRIES", {"retries": 0})
    path = budget(1.5 * ASKED)

    refused = run_dag(gpus="1", repeats=2)

    assert states(refused)["check_params"] == ["failed"]
    assert f"raise gpu_hours_per_month in {path}" in capsys.readouterr().out
    assert committed == []
    failed = run_dag(gpus="1")
    assert states(failed)["stage"] == ["failed"]
    assert committed == [pytest.approx(ASKED)]
    assert balance().committed_gpu_hours == 0
    assert not (home / "clusters").exists()


@pytest.mark.exhaustive
def test_a_job_counts_of_which_nothing_can_be_published_and_a_deleted_dag_run_does_not(
    run_dag: Callable[..., Any],
    budget: Callable[[float], Path],
    planned: Callable[..., Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where its DAG run was marked failed: `end` runs then, and neither `parse` nor `publish`."""

    from airflow.models import Variable  # the task's own cannot be used outside of a task

    async def no_log(*_: object) -> Path:
        raise UserError("the log is gone")

    monkeypatch.setattr("steptime.clusters.collecting.collect_log", no_log)
    budget(1.5 * ASKED)
    Variable.set(f"{KEY_PREFIX}0", "the first id of this Airflow")
    reserve(Owner("0", "llama31", "deleted"), planned(gpus="1").runs)

    dag_run = run_dag(gpus="1")
    Variable.delete(f"{KEY_PREFIX}0")

    assert states(dag_run)["performance.wait"] == states(dag_run)["performance.end"] == ["success"]
    assert states(dag_run)["performance.publish"] == ["upstream_failed"]
    assert Store().list_runs("llama31", dag_run.run_id) == []
    assert 0 < balance().used_gpu_hours < 0.1 * ASKED
    assert balance().committed_gpu_hours == 0
