"""Results of recipes by name, whose FLOPs are unknown: stored, judged and shown like all others."""

import json
import time

import pytest
import stored
from named_runs import run_of
from typer.testing import CliRunner

from steptime.cli import app
from steptime.logs.training_log import Step, TrainingLog
from steptime.measure.metrics import measure
from steptime.store.run_queries import Store


@pytest.fixture
def store(tmp_path, monkeypatch, make_result):
    """Return the store that commands read, with two recent runs by name that log no TFLOPS."""
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'store' / 'steptime.db'}")
    store, run = Store(), run_of()
    steps = tuple(Step(global_step=number, step_time_s=2.0, loss=11.0) for number in range(run.max_steps))
    log = TrainingLog(path="/experiments/log.out", format="megatron_bridge", bytes_read=100, steps=steps)
    for name, hours in (("first", 2), ("second", 1)):
        at = time.time() - 3600 * hours
        made = make_result(name, run=run, log=log, measurement=measure(run, log), submitted_at=at)
        stored.write(store, made)
    return store


def told(*command):
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_every_command_and_page_shows_it(store, tmp_path):
    rows = json.loads(told("results", "--format", "json"))["results"]
    assert [row["job_name"] for row in rows] == ["first", "second"]
    for row in rows:
        assert (row["flops_formula"], row["mfu_percent"]) == ("megatron-bridge", None)
        assert row["tokens_per_s_per_gpu"] == pytest.approx(4096 * 1280 / 2 / 64)
    for command in ("compare", "trend", "judge"):
        told("results", command)
    told("results")
    told("report", "-o", str(tmp_path / "week.html"))
    assert "120b" in (tmp_path / "week.html").read_text()
    told("archive", "-o", str(tmp_path / "results.tar.zst"))
    from steptime.pages.server import endpoints

    for answer in (
        endpoints.get_run(store, lambda _: False, "second"),
        endpoints.get_differences(store, "first", "second"),
        endpoints.get_series(store),
        endpoints.get_scaling(store, None),
        endpoints.get_trend(store, may_edit=lambda *_: False, job_name="second"),
    ):
        assert answer.status_code == 200


@pytest.mark.parametrize("tflops", [400.0, None], ids=["TFLOPS logged", "none logged"])
def test_a_log_beside_its_plan_is_parsed(tmp_path, tflops):
    run = run_of()
    (tmp_path / "run.json").write_text(run.model_dump_json())
    lines = []
    for step in range(1, run.max_steps + 1):
        if tflops is not None:
            lines.append(f"Step Time : 2.0s GPU utilization: {tflops}MODEL_TFLOP/s/GPU")
        lines.append(
            f" iteration {step:8}/{run.max_steps:8} | consumed samples: {step * 1280} |"
            " elapsed time per iteration (ms): 2000.0 | learning rate: 1E-05 | global batch size: 1280 |"
            " lm loss: 1.1E+01 | number of nan iterations: 0 |"
        )
    (tmp_path / f"log-{run.experiment}.out").write_text("\n".join(lines) + "\n")
    (row,) = json.loads(told("parse", str(tmp_path), "--format", "json"))["logs"]
    assert (row["window"], row["step_time_mean_s"]) == ("3:5", 2.0)
    assert row["mfu_percent"] == (None if tflops is None else pytest.approx(100 * tflops / 989))


def test_metrics_say_that_nobody_knows_the_flops():
    cell = "--workload gpt-oss-26.02 --size 120b --dtype bf16 --gpu-type h100 --gpus 64"
    shown = told("metrics", *cell.split(), "--step-time", "14", "--wide")
    assert "the TFLOPS that a run logs" in shown
    assert "5,993" in shown
    assert "2.4 % slower than published" in shown
