"""`steptime recipes` and `steptime plan` as people and programs call them."""

import csv
import json
import re
from io import StringIO
from pathlib import Path

import pytest
from printed_tables import configuration_rows, imported, times, workloads_on
from typer.testing import CliRunner

from steptime.cli import app, plan, recipes
from steptime.recipes.request import sections
from steptime.recipes.workloads import list_workloads, load_workload


def call(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_every_row_that_runs():
    rows = json.loads(call("recipes", "--format", "json").stdout)["recipes"]
    tiny = [row for row in rows if row["size"] == "tiny"]
    assert {row["recipe"] for row in tiny} == set(workloads_on("cpu"))
    others = [row for row in rows if row not in tiny and not times(row["recipe"])]
    documented = [row for row in others if not imported(row["recipe"])]
    assert len(documented) == len(configuration_rows())
    assert {row["image"] for row in rows if row["size"] == "tiny"} == {None}
    (row,) = (
        row
        for row in rows
        if row["recipe"] == "nemotron4-25.04"
        and row["gpus"] == 256
        and row["size"] == "340b"
        and row["dtype"] == "bf16"
    )
    assert (row["vp"], row["window"], row["time_limit"]) == (12, "last", "00:30:00")


def test_how_runs_are_launched_is_listed_with_sources():
    rows = list(csv.DictReader(StringIO(call("recipes", "--launch", "--format", "csv").stdout)))
    on_gpus = {
        name for name in list_workloads() if set(load_workload(name).gpu_types) != {"cpu"} and not times(name)
    }
    assert {row["recipe"] for row in rows} == on_gpus
    (deferral,) = (row for row in rows if (row["setting"], row["value"]) == ("wgrad_deferral_limit", "50"))
    assert (deferral["condition"], deferral["gpu_types"]) == ("405b", "h100")
    assert deferral["source"].startswith("NVIDIA/NeMo d2b21556f245, nemo/collections/llm/recipes/")
    both = CliRunner().invoke(app, ["recipes", "--launch", "--published"])
    assert "--published and --launch are separate lists" in str(both.exception)


@pytest.fixture
def no_history(tmp_path, monkeypatch):
    """Use an empty store, in which nothing has run."""
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")


@pytest.mark.usefixtures("no_history")
def test_plan_shows_runs_and_what_they_cost():
    shown = call("plan", "llama3.1", "--checkpoint")
    assert "llama3.1-25.04 tiny (3.67m parameters), fp32 on cpu, weak scaling" in shown.stdout
    assert "tiny·fp32·2·checkpoint load" in shown.stdout
    assert (
        "4 jobs, at most 1.17 GPU-hours on cluster 'local'. It saves a checkpoint of about " in shown.stdout
    )
    assert "of about 49 MiB. Nothing was submitted." in " ".join(shown.stdout.split())
    assert "no history and no publication: upper bound only" in shown.stdout


@pytest.mark.usefixtures("no_history")
def test_plan_as_csv_keeps_the_note_out_of_the_data():
    shown = call("plan", "llama3.1", "--size", "8b", "--gpus", "8-128", "--format", "csv")
    rows = list(csv.DictReader(StringIO(shown.stdout)))
    assert [(row["gpus"], row["gbs"], row["gpu_hours_max"]) for row in rows] == [
        ("8", "128", "4.0"),
        ("16", "256", "8.0"),
        ("32", "512", "16.0"),
        ("64", "1024", "32.0"),
        ("128", "2048", "64.0"),
    ]
    assert rows[0]["experiment"] == "pretrain_llama3.1_8b_bf16_8"
    assert rows[0]["expected_from"] == "publication"
    assert 0 < float(rows[0]["gpu_hours_expected"]) < 4
    assert "(5 by the publication, start and end of the job apart)" in shown.stderr
    assert (
        "at most 124.00 GPU-hours on cluster 'local', which has no h100 and could not run them"
        in shown.stderr
    )


def test_plan_shows_the_job_scripts():
    shown = call("plan", "llama3.1", "--gpus", "2", "--show-script", "--env", "A=b=c")
    assert "\n  A=b=c \\\n" in shown.stdout
    assert "# ---- tiny·fp32·2: job script ----\n#!" in shown.stdout
    assert "# ---- tiny·fp32·2: time limit 600 s, log " in shown.stdout
    assert "-m trainer.cpu_ranks run.json" in shown.stdout
    assert "/pretrain_llama3.1_tiny_fp32_2/" in shown.stdout
    arguments = ("plan", "llama3.1", "--gpus", "2", "--show-script", "--format", "json")
    (row,) = json.loads(call(*arguments).stdout)["runs"]
    assert "-m trainer.cpu_ranks run.json" in row["script"]
    assert (row["image"], Path(row["log_path"]).suffix) == (None, ".out")


def test_all_flags_of_a_plan():
    (row,) = json.loads(
        call(
            *("plan", "llama3.1", "--size", "tiny", "--dtype", "fp32", "--gpu-type", "cpu", "--gpus", "2"),
            *("--scaling", "strong", "--tensor-parallel", "2", "--max-steps", "30", "--window", "5:29"),
            *("--time-limit", "00:05:00", "--cluster", "local", "--env", "A=1", "--format", "json"),
        ).stdout
    )["runs"]
    assert (row["gpus"], row["tp"], row["dp"], row["gbs"], row["ga"]) == (2, 2, 1, 8, 8)
    assert (row["steps"], row["window"], row["time_limit"]) == (30, "5:29", "00:05:00")


def test_a_dry_run_shows_the_plan_and_needs_no_airflow():
    request = ("llama3.1", "--gpus", "1,2", "--format", "csv")
    assert call("run", *request, "--dry-run").stdout == call("plan", *request).stdout


@pytest.mark.parametrize("command", ["run", "plan"])
def test_help_has_the_panels_of_the_trigger_form(command, monkeypatch):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    panels = {}
    for line in call(command, "--help").stdout.splitlines():
        if begins := re.match(r"╭─ (.+?) ─", line):
            panels[begins[1]] = []
        if flag := re.match(r"│ +--([a-z-]+)", line):
            named = {"env": "environment", "arg": "arguments"}.get(flag[1], flag[1])
            panels[list(panels)[-1]].append(named.replace("-", "_"))

    form = {section: list(names) for section, names in sections().items()}
    assert {name: panels[name] for name in list(panels)[-len(form) :]} == form
    assert list(panels)[: -len(form)] == ["Arguments", "Options"]
    assert list(panels)[-len(form) :] == list(form)


@pytest.mark.parametrize(
    "line",
    [
        line
        for text in (recipes.EXAMPLES, recipes.DIFF_EXAMPLES, plan.EXAMPLES)
        for line in text.splitlines()
        if line.startswith("steptime ") and line != "steptime recipes"  # the table takes seconds
    ],
)
def test_every_example_works(line):
    arguments = line.partition(">")[0].split()[1:]
    assert call(*arguments).exit_code == 0


def test_releases_without_a_difference_are_said_to_have_none():
    told = call("recipes", "diff", "nccl", "nccl-26.11")
    assert (told.exit_code, told.stdout, told.stderr) == (0, "", "nothing differs\n")
