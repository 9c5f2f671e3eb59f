"""`steptime demo` calls its commands in order; each of them has tests of its own."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from steptime.cli import app, demo
from steptime.errors import UserError
from steptime.recipes.planning import plan

ADDRESS = "http://127.0.0.1:9090/dags/steptime_llama3.1-25.04/runs/r1"


class Steps:
    """A recorder that replaces the commands of the demo and sets how the runs end."""

    def __init__(self):
        self.called = []
        self.states = ["valid"] * 4
        self.ended_well = True

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def run_address(self, dag_id, dag_run_id):
        assert (dag_id, dag_run_id) == ("steptime_llama3.1-25.04", "r1")
        return ADDRESS

    async def stage(self, run):
        assert run.cluster == "local"

    async def require_python(self, run):
        assert run.cluster == "local"

    def wait(self, *_, **arguments):
        self.called.append(("wait", arguments))
        print("the table of results")
        return [{"state": state} for state in self.states], self.ended_well


@pytest.fixture
def steps(monkeypatch):
    steps = Steps()
    run = SimpleNamespace(dag_id="steptime_llama3.1-25.04", dag_run_id="r1")
    monkeypatch.setattr(demo, "_stage", steps.stage)
    monkeypatch.setattr(demo, "_require_python", steps.require_python)
    monkeypatch.setattr(demo, "up", lambda **arguments: steps.called.append(("up", arguments)))
    monkeypatch.setattr(demo, "check", lambda planned: steps.called.append(("check", planned)))
    monkeypatch.setattr(demo, "airflow_client", lambda *_: steps)
    monkeypatch.setattr(demo, "trigger", lambda _, planned: steps.called.append(("trigger", planned)) or run)
    monkeypatch.setattr(demo, "wait_for_results", steps.wait)
    return steps


def test_its_last_words_are_the_result_and_its_address(steps):
    done = CliRunner().invoke(app, ["demo", "--port", "9090"], catch_exceptions=False)

    assert done.exit_code == 0
    planned = plan(demo.REQUEST)
    assert steps.called == [
        ("up", {"port": 9090, "timeout": 900}),
        ("check", planned),
        ("trigger", planned),
        ("wait", {"of": 4, "wide": False}),
    ]
    *_, last = done.stdout.splitlines()
    assert last == f"✓ 4 of 4 valid in 0 s · {ADDRESS}/plugin/step-times-of-run"


def test_the_trainers_packages_are_installed_while_airflow_starts(steps, monkeypatch):
    airflow_starts = threading.Event()

    async def stage(_):
        assert await asyncio.to_thread(airflow_starts.wait, 60)
        steps.called.append(("staged", None))

    monkeypatch.setattr(demo, "_stage", stage)
    monkeypatch.setattr(demo, "up", lambda **_: airflow_starts.set())
    assert CliRunner().invoke(app, ["demo"], catch_exceptions=False).exit_code == 0
    called = [name for name, _ in steps.called]
    assert called.index("staged") < called.index("trigger")


def test_a_machine_on_which_the_trainer_cannot_be_is_named_before_anything_runs(steps, monkeypatch):
    async def require_python(_):
        raise UserError("cluster local has no python3.11")

    monkeypatch.setattr(demo, "_require_python", require_python)
    with pytest.raises(UserError, match=r"has no python3\.11"):
        CliRunner().invoke(app, ["demo"], catch_exceptions=False)
    assert not steps.called


@pytest.mark.parametrize(
    ("states", "ended_well", "counted"), [(["valid"] * 3 + ["rejected"], True, 3), (["valid"] * 4, False, 4)]
)
def test_what_is_not_valid_is_told_and_ends_it_with_exit_code_2(steps, states, ended_well, counted):
    steps.states, steps.ended_well = states, ended_well
    done = CliRunner().invoke(app, ["demo"])
    assert done.exit_code == 2
    assert f"✗ {counted} of 4 valid in 0 s · {ADDRESS}" in done.stdout.splitlines()[-1]


def test_what_fails_ends_it_with_its_exit_code(steps, monkeypatch):
    def fail(*_, **__):
        raise typer.Exit(2)

    monkeypatch.setattr(demo, "trigger", fail)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 2
    assert [name for name, _ in steps.called] == ["up", "check"]


def test_it_trains_at_two_scales_and_a_checkpoint_on_this_machine(monkeypatch):
    monkeypatch.setenv("STEPTIME_DEFAULT_CLUSTER", "mini-slurm")
    planned = plan(demo.REQUEST)
    assert [run.recipe.gpus for run in planned.runs] == [1, 2]
    assert len(planned.checkpoint_pairs) == 1
    assert {run.cluster for run in planned.all_runs} == {"local"}
