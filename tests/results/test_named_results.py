"""Results of recipes by name, of which nobody has the flops: stored, judged and shown like any other."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import stored
from named_runs import run_of
from typer.testing import CliRunner

from steptime.cli import app
from steptime.logs.models import Step, TrainingLog
from steptime.recipes.models import Run
from steptime.results.metrics import measure
from steptime.results.models import Result
from steptime.results.store import Store

MakeResult = Callable[..., Result]


def log_of(run: Run, *, tflops: float | None) -> TrainingLog:
    batch = run.recipe.global_batch_size
    return TrainingLog(
        path="/experiments/log.out",
        format="megatron_bridge",
        bytes_read=100,
        steps=tuple(
            Step(
                global_step=number,
                step_time_s=2.0,
                loss=11.0,
                global_batch_size=batch,
                consumed_samples=(number + 1) * batch,
                tflops_per_gpu=tflops,
            )
            for number in range(run.max_steps)
        ),
    )


@pytest.fixture(params=[400.0, None], ids=["TFLOPS logged", "none logged"])
def tflops(request: pytest.FixtureRequest) -> float | None:
    """What the run logs; without it there is neither TFLOPS nor MFU."""
    found: float | None = request.param
    return found


@pytest.fixture
def store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_result: MakeResult, tflops: float | None
) -> Store:
    """Two runs by name, of an hour ago and of now, in the store that commands read."""
    url = f"sqlite:///{tmp_path / 'store' / 'steptime.db'}"
    monkeypatch.setenv("STEPTIME_STORE_URL", url)
    store, run = Store(url), run_of()
    for name, began in (("first", time.time() - 7200), ("second", time.time() - 3600)):
        log = log_of(run, tflops=tflops)
        stored.write(
            store, make_result(name, run=run, log=log, measurement=measure(run, log), submitted_at=began)
        )
    return store


def told(*command: str) -> str:
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_the_mfu_is_of_the_tflops_that_were_logged(store: Store, tflops: float | None) -> None:
    rows = json.loads(told("results", "--format", "json"))["results"]
    assert {row["job_name"] for row in rows} == {"first", "second"}
    for row in rows:
        assert row["flops_formula"] == "megatron-bridge"
        assert row["mfu_percent"] == (None if tflops is None else pytest.approx(100 * tflops / 989))
        assert row["tokens_per_s_per_gpu"] == pytest.approx(4096 * 1280 / 2 / 64)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_every_command_and_page_shows_it(store: Store, tmp_path: Path) -> None:
    for command in (
        ("results",),
        ("results", "compare"),
        ("results", "trend"),
        ("results", "judge"),
    ):
        told(*command)
    told("report", "-o", str(tmp_path / "week.html"))
    assert "120b" in (tmp_path / "week.html").read_text()
    told("archive", "-o", str(tmp_path / "results.tar.zst"))
    from steptime.web import endpoints

    for answer in (
        endpoints.run(store, lambda _: False, "second"),
        endpoints.differences(store, "first", "second"),
        endpoints.series(store),
        endpoints.scaling(store, None),
        endpoints.series_trend(store, may_edit=lambda *_: False, job_name="second"),
    ):
        assert answer.status_code == 200


def test_a_log_beside_its_plan_is_parsed(tmp_path: Path, tflops: float | None) -> None:
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


def test_metrics_say_that_nobody_knows_the_flops() -> None:
    cell = "--workload gpt-oss-26.02 --size 120b --dtype bf16 --gpu-type h100 --gpus 64"
    shown = told("metrics", *cell.split(), "--step-time", "14", "--wide")
    assert "the TFLOPS that a run logs" in shown
    assert "5,993" in shown
    assert "2.4 % slower than published" in shown
