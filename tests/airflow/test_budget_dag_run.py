"""Budgets in whole DAG runs: refused before anything is submitted, and every job counts, however it ended."""

from pathlib import Path

import pytest

from steptime.clusters.base import StagedFiles
from steptime.errors import SystemFailure
from steptime.results.budgets import BudgetBalance, budget_balances

from .conftest import RunDag, SetBudget
from .test_dag_run import states

# What Airflow's own API server, which runs in the test's process, warns of.
pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore:Using `httpx` with")]

ASKED = 600 / 3600
"""GPU-hours of a run on one process, by the workload's time limit."""


def balance() -> BudgetBalance:
    [found] = budget_balances(["local"])
    return found


def test_a_plan_above_the_budget_submits_nothing_and_what_was_not_submitted_is_given_back(
    run_dag: RunDag,
    budget: SetBudget,
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
