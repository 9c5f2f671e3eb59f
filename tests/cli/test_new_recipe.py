"""`steptime recipes new`: what it writes is valid at once, and what is there is never touched."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptime import settings
from steptime.cli import app
from steptime.errors import UserError
from steptime.recipes.planning import parse_request, plan, require_runnable
from steptime.recipes.workloads import list_workloads, load_workload


@pytest.fixture
def workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `workloads` of a copy of config/, which is the one that is read."""
    config = tmp_path / "config"
    shutil.copytree(settings.config_dir(), config)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
    return config / "workloads"


def new(*arguments: str) -> str:
    called = CliRunner().invoke(app, ["recipes", "new", *arguments], catch_exceptions=False)
    assert called.exit_code == 0
    return called.stdout


def refusal(*arguments: str) -> str:
    error = CliRunner().invoke(app, ["recipes", "new", *arguments]).exception
    assert isinstance(error, UserError), error
    return str(error)


@pytest.mark.parametrize(
    ("options", "size", "gpus", "expert"), [((), "8b", 8, None), (("--moe",), "47b-a13b", 64, 8)]
)
def test_what_is_written_can_be_planned(
    workloads: Path, options: tuple[str, ...], size: str, gpus: int, expert: int | None
) -> None:
    told = new("gpt5.1-x-26.01", *options)
    assert told.startswith(f"written: {workloads / 'gpt5.1-x-26.01.yaml'}\n")
    assert load_workload("gpt5.1-x").dag_id == "gpt51_x"
    tiny = plan(parse_request({"workload": "gpt5.1-x"}))
    assert [run.recipe.gpus for run in tiny.runs] == [1, 2]
    require_runnable(tiny)
    (full,) = plan(
        parse_request({"workload": "gpt5.1-x", "size": size, "dtype": "bf16", "gpu_type": "h100"})
    ).runs
    assert (full.recipe.gpus, full.recipe.parallelism.expert) == (gpus, expert)
    assert {recipe.gpus for recipe, _ in load_workload("gpt5.1-x").recipes()} == {
        1,
        2,
        4,
        gpus,
        2 * gpus,
        4 * gpus,
    }


def test_it_may_be_the_first_workload_of_a_configuration(workloads: Path) -> None:
    shutil.rmtree(workloads)
    new("qwen4-26.08", "--moe")
    assert list_workloads() == ("qwen4-26.08",)


def test_in_a_folder_that_is_no_configuration_nothing_is_written(workloads: Path) -> None:
    shipped = settings.shipped("config")
    shutil.rmtree(workloads.parent)
    workloads.parent.mkdir()
    assert refusal("qwen4-26.08", "--moe") == (
        f"'{workloads.parent}' (STEPTIME_CONFIG_DIR) has no clusters, flops.yaml, gpus.yaml, "
        f"megatron_bridge.yaml: copy the shipped folder '{shipped}' there first."
    )
    assert list(workloads.parent.iterdir()) == []


@pytest.mark.filterwarnings("default")
def test_airflow_imports_its_dag(workloads: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    new("gpt5-26.01", "--moe")
    dags = settings.shipped("dags")
    bag = DagBag(dags / "workloads.py", bundle_path=dags, bundle_name="tests")
    assert bag.import_errors == {}
    assert "gpt5" in bag.dags


def test_nothing_is_overwritten(workloads: Path) -> None:
    (mine := workloads / "gpt5-26.01.yaml").write_text("mine")
    assert f"'{mine}' exists already: choose another name" in refusal("gpt5-26.01")
    assert mine.read_text() == "mine"
    assert "the DAG 'llama31' of 'llama3.1-99.01' is that of llama3.1-25.04 already" in refusal(
        "llama3.1-99.01"
    )


@pytest.mark.parametrize(
    "name", ["gpt5", "GPT5-26.01", "../gpt5-26.01", "gpt5-26", "5-26.01", "-26.01", "a b-26.01"]
)
def test_what_is_no_name_is_refused(workloads: Path, name: str) -> None:
    before = sorted(workloads.parent.rglob("*"))
    assert "is not a workload name: write family and release" in refusal("--", name)
    assert sorted(workloads.parent.rglob("*")) == before
