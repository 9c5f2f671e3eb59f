"""Budgets as commands show them: in a plan, refused before anything is started, and in `steptime status`."""

import json
import sys
from pathlib import Path

import pytest

from steptime.cli import main
from steptime.recipes.planning import PlanRequest, plan
from steptime.results.budgets import Owner, reserve
from steptime.settings import config_dir

ASKED = 600 / 3600
"""GPU-hours of a run of the tiny Llama on one process."""


@pytest.fixture
def budget(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the cluster `local`, which has 0.4 GPU-hours a month; 0.17 of them are committed."""
    shipped, config = config_dir(), here / "config"
    (config / "clusters").mkdir(parents=True)
    (config / "sweeps").mkdir()
    for name in ("workloads", "gpus.yaml"):
        (config / name).symlink_to(shipped / name)
    path = config / "clusters" / "local.yaml"
    path.write_text(f"{(shipped / 'clusters' / 'local.yaml').read_text()}\ngpu_hours_per_month: 0.4\n")
    sweep = {"name": "night", "gpu_hours_max": 10, "runs": [{"workload": "llama3.1", "gpus": [1, 2]}]}
    (config / "sweeps" / "night.yaml").write_text(json.dumps(sweep))
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
    committed = plan(PlanRequest(workload="llama3.1", gpus="1")).runs
    reserve(Owner("ours", "llama31", "a"), committed)
    return path


def steptime(monkeypatch: pytest.MonkeyPatch, arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["steptime", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_what_a_budget_does_not_allow_is_refused_by_every_command(
    budget: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {}
    for command in (
        "plan llama3.1 --gpus 2",
        "plan llama3.1 --gpus 2 --format json",
        "run llama3.1 --gpus 2",
        "run llama3.1 --gpus 2 --dry-run",
        "sweep plan night",
        "sweep run night",
    ):
        code = steptime(monkeypatch, command)
        error = capsys.readouterr().err.splitlines()[-1]
        said[command] = (code, f"raise gpu_hours_per_month in {budget}" in error)
    assert said == dict.fromkeys(said, (1, True))


def test_a_plan_that_is_allowed_says_how_the_budget_stands(
    budget: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plan llama3.1 --gpus 1", "run llama3.1 --gpus 1 --dry-run"):
        assert steptime(monkeypatch, command) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("budget: 0.00 of 0.40 GPU-hours used in 20")
        assert last.endswith(", 0.17 committed, this plan at most 0.17")


def test_a_budget_that_cannot_be_checked_is_a_failure_of_the_system(
    budget: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", "postgresql://steptime@127.0.0.1:1/nowhere")
    for command in ("plan llama3.1 --gpus 1", "run llama3.1 --gpus 1", "sweep run night"):
        assert steptime(monkeypatch, command) == 2
        assert "the budget of cluster local cannot be checked" in capsys.readouterr().err
    assert steptime(monkeypatch, "status") == 2
    assert "the budget of cluster local cannot be checked" in capsys.readouterr().err


def test_status_shows_each_budget(
    budget: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steptime(monkeypatch, "status --format json")
    [told] = json.loads(capsys.readouterr().out)["budgets"]
    assert told.pop("month")
    assert told == {
        "cluster": "local",
        "account": None,
        "gpu_hours_per_month": 0.4,
        "used_gpu_hours": 0.0,
        "committed_gpu_hours": pytest.approx(ASKED),
        "left_gpu_hours": pytest.approx(0.4 - ASKED),
    }
    steptime(monkeypatch, "status")
    assert "budgets, GPU-hours" in capsys.readouterr().out
