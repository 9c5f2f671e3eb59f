"""`steptime results compare` on half a year of runs: it names what was planted, and nothing else."""

import csv
import json
import re
import shlex
import time
from io import StringIO

import pytest
import stored
from called import refusal
from typer.testing import CliRunner

from steptime.cli import app
from steptime.judging.findings import COLUMNS
from steptime.measure.repeating import make_request
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest
from steptime.settings import config_dir

pytestmark = pytest.mark.slow


def call(*arguments):
    return CliRunner().invoke(app, ["results", "compare", *arguments], catch_exceptions=False)


@pytest.fixture
def half_a_year(half_years, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[1])


@pytest.mark.usefixtures("half_a_year")
def test_monday_morning_names_exactly_what_was_planted():
    shown = call()

    first, second, third, *_ = shown.stdout.splitlines()
    assert first.startswith("8 cells: 3 slower, 1 faster, 3 unchanged, 1 with insufficient history; worst ")
    assert second == (
        "8 cells planned: 7 judged, 1 with insufficient history, 0 failed, 0 not run; 1 shown by an earlier "
        "run, as the newest failed (tiny·fp32·2: Expected 20 steps, but found 3); "
        "2 too noisy to detect 5 % (small·fp32·1, tiny·fp32·8)."
    )
    assert third.startswith("8 cells · 14 runs, 1 rejected · 0.481 GPU-hours · in the queue for ")
    assert shown.exit_code == 3
    for heading in ("change, %", "now, s", "baseline, s"):
        assert heading in shown.stdout
    of_cell = {line.split("  ")[0]: line for line in shown.stdout.splitlines()}
    assert re.search(r" \+\d\.\d ", of_cell["small·fp32·4"]), "slower has its sign"
    assert re.search(r" -\d\.\d ", of_cell["small·fp32·2"])
    remarks = {line.partition(":")[0]: line for line in shown.stdout.splitlines() if "changed then" in line}
    assert len(remarks) == 4
    said = "confirmed on the same node (localhost); changed then: OMP_NUM_THREADS 1 → 2"
    assert remarks.pop("small·fp32·4").endswith(said)
    assert all("nothing is recorded that changed" in line for line in remarks.values())
    cells = {row["cell"]: row for row in json.loads(call("--format", "json").stdout)["cells"]}
    told = {name: (row["verdict"], row["series_state"]) for name, row in cells.items()}
    assert {name: one for name, one in told.items() if one[0] != "unchanged"} == {
        "small·fp32·4": ("slower", "confirmed"),
        "tiny·fp32·4": ("slower", "confirmed"),
        "small·fp32·1": ("slower", "suspected"),
        "small·fp32·2": ("faster", "confirmed"),
        "small·fp32·8": ("insufficient history", "insufficient history"),
    }
    assert 3 < cells["small·fp32·4"]["change_percent"] < 7
    assert cells["tiny·fp32·8"]["minimum_detectable_change_percent"] > 10, "the noisy cell"
    assert cells["tiny·fp32·4"]["minimum_detectable_change_percent"] < 6
    assert cells["small·fp32·8"]["change_percent"] is None


@pytest.mark.usefixtures("half_a_year")
def test_filters_choose_cells_and_change_no_verdict():
    every = {row["cell"]: row for row in json.loads(call("--format", "json").stdout)["cells"]}

    of_size = json.loads(call("--size", "small", "--gpus", "4", "--format", "json").stdout)

    assert of_size["cells"] == [every["small·fp32·4"]]
    assert of_size["completeness"]["planned"] == 1
    assert of_size["took"].startswith("1 cell · ")
    assert call("--size", "small", "--gpus", "4").exit_code == 3
    assert call("--size", "tiny", "--gpus", "8").exit_code == 0


def test_a_suspicion_says_how_to_start_the_runs_that_decide(store, make_result, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    request = PlanRequest(workload="llama3.1", size="tiny", gpus="2")
    planned = plan(request).runs[0]
    alone = {"run": planned, "request": make_request(planned, request.model_dump())}
    for number in range(7):
        times = [0.2 if number < 6 else 0.25] * 20
        stored.write(store, make_result(f"run-{number}", step_times=times, submitted_at=time.time(), **alone))

    shown = call()

    remark = shown.stdout.splitlines()[-1]
    assert re.search(r"slower by 25.0 % since [-0-9]{10}, suspected; nothing is recorded", remark)
    command = remark.partition("; 2 confirmation runs decide: ")[2]
    assert command.startswith("steptime run llama3.1-25.04 --size tiny")
    listed = CliRunner().invoke(app, ["plan", *shlex.split(command)[2:]], catch_exceptions=False)
    assert "repeat 2" in listed.stdout, "it plans two"
    assert shown.exit_code == 0, "a suspicion is no verdict yet"


@pytest.mark.usefixtures("half_a_year")
def test_programs_get_every_column_and_the_sentence():
    as_json = json.loads(call("--format", "json").stdout)
    as_csv = call("--format", "csv")
    rows = list(csv.DictReader(StringIO(as_csv.stdout)))

    assert as_json["schema_version"] == 1
    line = as_json["completeness"]["line"]
    lines = [f"{as_json['sentence']}.", f"{line}.", *(as_json[key] for key in ("took", "cost", "goodput"))]
    assert as_csv.stderr.splitlines() == lines
    assert as_csv.exit_code == 3
    names = [column.name for column in COLUMNS]
    assert list(rows[0]) == list(as_json["cells"][0]) == names
    assert [row["cell"] for row in rows] == [row["cell"] for row in as_json["cells"]]
    worst = as_json["cells"][0]
    assert as_json["sentence"].partition("worst ")[2].startswith(worst["cell"])
    assert worst["judged_on"] == "median of steps 0 to 19"
    assert worst["q_value"] >= worst["p_value"]
    assert as_json["remarks"]


def test_only_cells_that_ran_since_then_are_compared(half_years, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[0])
    nothing = call("--since", "1m")
    said, line, took = nothing.stdout.splitlines()
    assert said == "0 cells: 0 slower, 0 faster, 0 unchanged."
    assert line == "0 cells planned: 0 judged, 0 failed, 0 not run."
    assert took.startswith("0 cells · ")
    assert "give an earlier time with --since" in nothing.stderr
    assert call("--since", "30w").stdout.startswith("8 cells: 0 slower")


@pytest.mark.usefixtures("half_a_year")
def test_a_sweep_is_compared_by_its_cells(tmp_path, monkeypatch):
    shipped, config = config_dir(), tmp_path / "config"
    (config / "sweeps").mkdir(parents=True)
    for name in ("workloads", "clusters", "gpus.yaml"):
        (config / name).symlink_to(shipped / name)
    sweep = {
        "name": "night",
        "gpu_hours_max": 100,
        "repeats": 2,
        "runs": [
            {"workload": "llama3.1", "size": "tiny", "gpus": [1, 2, 4]},
            {"workload": "nemotron4", "size": "tiny", "gpus": 1},
        ],
    }
    (config / "sweeps" / "night.yaml").write_text(json.dumps(sweep))
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))

    shown = call("--sweep", "night")

    first, second, *_ = shown.stdout.splitlines()
    assert first.startswith("3 cells: 1 slower, 0 faster, 2 unchanged; worst tiny·")
    assert second.startswith("4 cells planned: 3 judged, 0 failed, 1 not run (tiny·fp32·1 (nemotron4")
    assert shown.exit_code == 3


@pytest.mark.usefixtures("half_a_year")
def test_two_runs_are_compared_by_the_spread_of_their_series():
    slower = call("small-4-24", "small-4-26")

    assert slower.stdout.startswith("1 cell: 1 slower, 0 faster, 0 unchanged; worst small·fp32·4 +")
    assert "suspected" in slower.stdout
    assert slower.exit_code == 0, "one run each confirms nothing"
    assert "OMP_NUM_THREADS 1 → 2" in slower.stdout
    assert call("small-4-22", "small-4-23").stdout.startswith("1 cell: 0 slower, 0 faster, 1 unchanged.")
    assert call("small-4-26", "small-4-24").stdout.startswith("1 cell: 0 slower, 1 faster")
    early = call("small-4-02", "small-4-03")
    assert early.stdout.startswith("1 cell: 0 slower, 0 faster, 0 unchanged, 1 with insufficient history")


@pytest.mark.usefixtures("half_a_year")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["small-4-24"], "a comparison takes two runs, not 1 (small-4-24): name two, or none to"),
        (["small-4-24", "small-4-26", "--sweep", "weekly"], "two runs and --sweep exclude each other"),
        (["--since", "7d", "--sweep", "weekly"], "--since and --sweep exclude each other"),
        (["--since", "monday"], "--since 'monday' is not a time"),
        (["--sweep", "wekly"], "did you mean 'example-weekly'?"),
        (["small-4-2", "small-4-26"], "'small-4-2' begins the names of 8 runs (small-4-20, small-4-21, "),
        (["small-4-99", "small-4-26"], "there is no run 'small-4-99' in the metrics store: did you mean"),
        (["small-4-26", "small-4-26"], "name the same run, small-4-26: name two runs."),
        (
            ["small-4-24", "tiny-8-24"],
            "belong to different series and cannot be compared: size small and tiny",
        ),
        (["tiny-2-24", "rej"], "run rejected was rejected, so it cannot be compared: Expected 20 steps"),
        (["profile-07", "profile-08"], "ran in mode profile, whose times are not comparable"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments, sentence, capsys):
    assert sentence in refusal(capsys, "results", "compare", *arguments)


def test_an_empty_store_says_how_to_make_a_first_result(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'none' / 'steptime.db'}")

    assert "there are no results to compare, as there is no metrics store" in refusal(
        capsys, "results", "compare"
    )
    assert not (tmp_path / "none").exists(), "looking makes nothing"
