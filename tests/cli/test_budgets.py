"""How budgets are shown, and that every command refuses what a budget or a cluster does not allow."""

import json

import pytest
from called import steptime
from stored import as_planned

from steptime.recipes.planning import PlanRequest, plan
from steptime.store.budgets import Owner, store_plan

ASKED = 600 / 3600
"""GPU-hours of a run of the tiny Llama on one process."""


@pytest.fixture
def budget(configure):
    """Return the file of the cluster `local`, with 0.4 GPU-hours a month, of which 0.17 are committed."""
    path = configure(lambda text: f"{text}\ngpu_hours_per_month: 0.4\n")
    committed = plan(PlanRequest(workload="llama3.1", gpus="1")).runs
    store_plan(Owner("ours", "steptime_llama3.1-25.04", "a"), [as_planned(run) for run in committed])
    return path


def test_what_a_budget_does_not_allow_is_refused_by_every_command(budget, capsys):
    said = {}
    for command in (
        "plan llama3.1 --gpus 2",
        "plan llama3.1 --gpus 2 --format json",
        "run llama3.1 --gpus 2",
        "run llama3.1 --gpus 2 --dry-run",
        "sweep plan night",
        "sweep run night",
    ):
        code = steptime(*command.split())
        error = capsys.readouterr().err.splitlines()[-1]
        said[command] = (code, f"raise gpu_hours_per_month in {budget}" in error)
    assert said == dict.fromkeys(said, (1, True))


def test_a_plan_that_is_allowed_says_how_the_budget_stands(budget, capsys):
    for command in ("plan llama3.1 --gpus 1", "run llama3.1 --gpus 1 --dry-run"):
        assert steptime(*command.split()) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("budget: 0.00 of 0.40 GPU-hours used in 20")
        assert last.endswith(", 0.17 committed, this plan at most 0.17")

    assert steptime(*["plan", "llama3.1", "--gpus", "1", "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert len(json.loads(shown.out)["runs"]) == 1
    assert "budget: 0.00 of 0.40" in shown.err

    text = budget.read_text().replace("name: local", "name: other")
    (budget.parent / "other.yaml").write_text(text.replace("gpu_hours_per_month: 0.4", ""))
    runs = [{"workload": "llama3.1", "gpus": 1, "cluster": cluster} for cluster in ("local", "other")]
    sweep = {"name": "both", "gpu_hours_max": 10, "runs": runs}
    (budget.parents[1] / "sweeps" / "both.yaml").write_text(json.dumps(sweep))
    assert steptime("sweep", "plan", "both") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(", 0.17 committed, this plan at most 0.17"), "also beside a cluster without a budget"


def test_a_budget_that_cannot_be_checked_is_a_failure_of_the_system(budget, monkeypatch, capsys):
    monkeypatch.setenv("STEPTIME_STORE_URL", "postgresql://steptime@127.0.0.1:1/nowhere")
    for command in ("plan llama3.1 --gpus 1", "run llama3.1 --gpus 1", "sweep run night"):
        assert steptime(*command.split()) == 2
        assert "the budget of cluster local cannot be checked" in capsys.readouterr().err
    assert steptime("status") == 2
    assert "the budget of cluster local cannot be checked" in capsys.readouterr().err


def test_status_shows_each_budget(budget, capsys):
    steptime("status", "--format", "json")
    [told] = json.loads(capsys.readouterr().out)["budgets"]
    assert told.pop("month")
    assert told == {
        "cluster": "local",
        "gpu_hours_per_month": 0.4,
        "used_gpu_hours": 0.0,
        "committed_gpu_hours": pytest.approx(ASKED),
        "left_gpu_hours": pytest.approx(0.4 - ASKED),
    }
    steptime("status")
    assert "budgets, GPU-hours" in capsys.readouterr().out


REFUSED = (
    "tiny·fp32·2 needs 2 slots and local has 1: plan fewer, or set slots: 2 in config/clusters/local.yaml"
)


@pytest.mark.parametrize(
    ("command", "shows_the_plan"),
    [
        ("plan llama3.1 --gpus 2", True),
        ("run llama3.1 --gpus 2 --dry-run", True),
        ("run llama3.1 --gpus 2", False),
        ("sweep plan night", False),
        ("sweep run night", False),
    ],
)
def test_a_run_that_its_cluster_cannot_hold_is_refused_by_every_command(
    command,
    configure,
    capsys,
    *,
    shows_the_plan,
):
    configure(lambda text: text.replace("slots: auto", "slots: 1"))
    assert steptime(*command.split()) == 1
    said = capsys.readouterr()
    assert REFUSED in " ".join(said.err.split())
    assert ("Nothing was submitted" in said.out) is shows_the_plan
