"""A suite: each cell at 95 % of its own baseline, what is lacking, and the dossier."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest
from stored import publish
from sync_ledger import ledger
from typer.testing import CliRunner

from steptime.cli import app
from steptime.judging.detection import Baseline
from steptime.judging.suite import SuiteCell, judge_suite, made_with
from steptime.recipes.sweep_planning import expand_cell, plan_sweep
from steptime.recipes.sweeps import load_sweep
from steptime.settings import config_dir
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store
from tests.store.conftest import ledger_job

__all__ = ["ledger_job"]  # a fixture

BASELINE_S = 2.0
LIMIT_S = BASELINE_S / 0.95


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Return the first repeat of each cell of a suite of 7; all cells but the last have a baseline."""
    shutil.copytree(config_dir(), tmp_path / "config")
    (tmp_path / "config/sweeps/mini.yaml").write_text(
        "{name: mini, description: A small suite, cluster: local, repeats: 3, gpu_hours_max: 9, runs: [\n"
        "  {workload: llama3.1, size: tiny, gpus: [1, 2, 4]},\n"
        "  {workload: nemotron4-25.04, size: tiny, gpus: [1, 2]},\n"
        "  {workload: nemotron-h, size: tiny, gpus: [1, 2]}]}\n"
    )
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    cells = plan_sweep(load_sweep("mini")).cells
    runs = [run for cell in cells if cell.repeat == 1 for run in expand_cell(cell)]
    for workload in dict.fromkeys(run.recipe.workload for run in runs):
        of = [run.recipe for run in runs[:-1] if run.recipe.workload == workload]
        tables = ", ".join(
            f"{{size: tiny, dtype: {one.dtype}, gpu_type: cpu, seq_length: {one.model.seq_length}, "
            f"gpus: [{one.gpus}], global_batch_size: [{one.global_batch_size}], step_time_s: [{BASELINE_S}]}}"
            for one in of
        )
        (tmp_path / f"config/references/{workload}.yaml").write_text(
            f"{{document: {workload}, title: A letter, step_time: mean of the window, tables: [{tables}]}}\n"
        )
    return runs


def ran(
    make_result,
    run,
    *seconds,
    at=1e9,
    verdict=None,
    folder=Path("/nowhere"),
):
    """Store runs of a cell with these mean step times; return their jobs."""
    made = make_result("x").submitted
    names = []
    for number, time in enumerate(seconds):
        name = f"{run.recipe.workload}-{run.recipe.gpus}-{number}-{at:.0f}-{verdict is None}"
        submitted_at = at + number
        result = make_result(
            name,
            step_times=[time] * 20,
            run=run.model_copy(update={"max_steps": 20, "window": make_result("x").run.window}),
            job=made.job.model_copy(update={"name": name, "submitted_at": submitted_at}),
            provenance=made.provenance.model_copy(update={"sweep": "mini", "dag_id": "steptime_sweep"}),
            verdict=verdict,
        )
        log = result.log.model_copy(update={"path": str(folder / "log.out")})
        publish(Store(), result.model_copy(update={"log": log}))
        names.append(name)
    return names


BAD = Verdict(checks=(Check(name="loss", passed=False, message="The loss is NaN."),))


@pytest.mark.long
def test_each_verdict_and_the_dossier(make_result, cells, tmp_path):
    passing, below, undecided, alone, failing, _missing, unknown = cells
    (tmp_path / "log.out").write_text("iteration 1\n")
    ran(make_result, passing, 2.0, 2.01, 1.99, folder=tmp_path)
    ran(make_result, below, 2.2, 2.21, 2.19)
    ran(make_result, undecided, LIMIT_S, 1.01 * LIMIT_S, 1.02 * LIMIT_S)
    ran(make_result, alone, 2.0)
    ran(make_result, failing, 2.0, 2.0, verdict=BAD)
    ran(make_result, unknown, 2.0, 2.0)
    ran(make_result, passing, 2.0, at=1e9 + 100, verdict=BAD)

    suite = judge_suite(Store(), "mini")

    verdicts = ["passes", "below", "undecided", "undecided", "failed", "missing", "no baseline"]
    assert [cell.verdict for cell in suite.cells] == verdicts
    assert suite.sentence == (
        "1 of 7 cells pass at 95 % of the baseline; 1 below, 2 undecided, 1 no baseline, 1 failed, 1 missing"
    )
    assert [row["submitted_at"] for row in suite.runs] == sorted(
        row["submitted_at"] for row in Store().results(include_rejected=True)
    )
    baselines = [row["value"] for row in made_with(Store(), suite) if row["what"] == "baseline"]
    assert baselines == sorted(baselines)
    assert len(baselines) > 1
    remarks = [cell.remark for cell in suite.cells]
    assert remarks[0] == "since then it failed: The loss is NaN"
    assert remarks[1] == "it reaches 90.9 % of the baseline (89.9 to 91.9 %) in 3 runs"
    assert remarks[2].endswith("in 3 runs; 4 more repeats decide it")
    assert remarks[3] == "it reaches 100.0 % of the baseline in 1 run; 2 more repeats decide it"
    assert remarks[4] == "failed 2 times, the newest: The loss is NaN"
    assert remarks[5].startswith("did not run")
    assert "config/references/nemotron-h-25.05.yaml has no row of it" in remarks[6]

    files = ("-o", str(tmp_path / "d.html"), "--archive", str(tmp_path / "d.tar.zst"))
    done = CliRunner().invoke(app, ["report", "--suite", "mini", *files])
    assert done.exit_code == 0, done.output
    assert "d.tar.zst, 3 of 12 runs" in done.output.replace("\n", "")
    assert done.output.startswith(f"{suite.sentence}.\n{suite.lacking[0]}.\n")
    page = (tmp_path / "d.html").read_text()
    assert "<h1>steptime: suite mini</h1>" in page
    shown = ["faster", "slower", "", "", "slower", "slower", ""]
    assert re.findall('<tr class="([a-z]*)">', page)[: len(shown)] == shown
    assert all(remark in page for remark in remarks if remark)
    assert hashlib.sha256(b"iteration 1\n").hexdigest() in page
    assert "not on this machine" in page
    assert "675de01b859eae371bc01bf59b001889438a7a12" in page


@pytest.mark.long
def test_only_runs_since_the_newest_run_of_the_sweep_count(make_result, cells, ledger_job):
    ran(make_result, cells[0], 3.0, 3.0, 3.0, at=1e9 - 1e6)
    assert judge_suite(Store(), "mini").cells[0].verdict == "below"
    made = make_result("x").submitted.provenance
    newer = {"sweep": "mini", "dag_id": "steptime_sweep", "dag_run_id": "newer"}
    for number in range(3):
        job = make_result("x").job.model_copy(update={"name": f"n{number}", "submitted_at": 1e9 + number})
        run = cells[0].model_copy(update={"max_steps": 20, "window": make_result("x").run.window})
        provenance = made.model_copy(update=newer if number < 2 else {"dag_run_id": f"alone {number}"})
        publish(Store(), make_result("x", run=run, job=job, provenance=provenance, step_times=[2.0] * 20))

    suite = judge_suite(Store(), "mini")
    assert (suite.since, suite.cells[0].verdict, len(suite.cells[0].runs)) == (1e9, "passes", 3)
    assert suite.sentence == "1 of 7 cells pass at 95 % of the baseline; 6 missing"
    assert judge_suite(Store(), "mini", 0.0).cells[0].verdict == "undecided"

    ran_of = {"dag_id": "steptime_sweep", "dag_run_id": "newer", "run": cells[1], "state": "failed"}
    for at in (1e9 - 60, 1e9 + 60):
        ledger.add(ledger_job(f"lost {at}", **ran_of, created_at=at, ended_at=at + 30))
    assert judge_suite(Store(), "mini").since == 1e9 - 60


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """This holds for runs that vary by 3 %; below that it is wider, as three runs may agree by luck."""
    import numpy as np

    dice = np.random.default_rng(1)
    hits = 0
    for runs in dice.normal(100, 3, (2000, 3)):
        low, high = Baseline(tuple(map(float, runs))).interval(0.95)
        hits += low <= 100 <= high
    assert hits / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("seconds", "verdict", "wanted", "remark"),
    [
        ((2.0, 2.01, 1.99), "passes", 0, ""),
        ((2.2, 2.21, 2.19), "below", 0, "it reaches 90.9 % of the baseline (89.9 to 91.9 %) in 3 runs"),
        (
            (LIMIT_S, 1.01 * LIMIT_S, 1.02 * LIMIT_S),
            "undecided",
            4,
            "it reaches 94.1 % of the baseline (91.8 to 96.4 %) in 3 runs; 4 more repeats decide it",
        ),
        (
            (2.0, 2.02),
            "undecided",
            1,
            "it reaches 99.5 % of the baseline (93.2 to 105.8 %) in 2 runs; 1 more repeat decides it",
        ),
        (
            (0.97 * LIMIT_S, LIMIT_S, 1.03 * LIMIT_S),
            "undecided",
            None,
            "it reaches 95.1 % of the baseline (88.0 to 102.1 %) in 3 runs; "
            "this is so near to 95 % that 30 runs would not decide it",
        ),
    ],
)
def test_what_a_cell_lacks(cells, seconds, verdict, wanted, remark):
    rows = tuple({"step_time_mean_s": time} for time in seconds)
    cell = SuiteCell(cells[0], rows, BASELINE_S, "the letter")
    assert (cell.verdict, cell.repeats_wanted, cell.remark) == (verdict, wanted, remark)


def test_no_interval_begins_below_zero(cells, make_result):
    ran(make_result, cells[0], BASELINE_S, 1.5 * BASELINE_S)
    percents = judge_suite(Store(), "mini", 0.0).cells[0].percents
    assert percents is not None
    assert percents[0] == 0.0
