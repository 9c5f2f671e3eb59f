"""`steptime demo` does what three commands do, in their order; each of them has tests of its own."""

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from steptime.cli import app, demo
from steptime.recipes.planning import plan


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is called in place of the commands."""
    called: list[Any] = []
    monkeypatch.setattr(demo, "up", lambda **arguments: called.append(("up", arguments)))
    monkeypatch.setattr(demo, "run", lambda request, **arguments: called.append((request, arguments)))
    return called


def test_it_starts_airflow_runs_and_says_where_the_results_are(called: list[Any]) -> None:
    done = CliRunner().invoke(app, ["demo", "--port", "9090"], catch_exceptions=False)
    assert done.exit_code == 0
    assert called == [("up", {"port": 9090}), (demo.REQUEST, {"wait": True}), ("up", {})]


def test_what_fails_ends_it_with_its_exit_code(called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise typer.Exit(2)

    monkeypatch.setattr(demo, "run", fail)
    assert CliRunner().invoke(app, ["demo"]).exit_code == 2
    assert called == [("up", {"port": None})]


def test_it_trains_at_two_scales_and_a_checkpoint_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_DEFAULT_CLUSTER", "mini-slurm")
    planned = plan(demo.REQUEST)
    assert [run.recipe.gpus for run in planned.runs] == [1, 2]
    assert len(planned.checkpoint_pairs) == 1
    assert {run.cluster for run in planned.all_runs} == {"local"}
