"""The plans and the report of benchmarks/one_gpu.py; the loop itself: tests/trainer/test_thin_loop.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.run import read_run
from trainer.thin import limits

from .jobs import ROOT

STEP_S = 2.0


def one_gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "one_gpu.py"), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def planned_folder(tmp_path: Path) -> Path:
    done = one_gpu("plan", str(tmp_path), "--layers", "2")
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_the_thin_loop_takes_every_plan(planned_folder: Path) -> None:
    runs = [read_run(path) for path in sorted(planned_folder.glob("*/run.json"))]
    for run in runs:
        limits.check(run)
    assert {(run.recipe.model.architecture, run.recipe.dtype, run.mode) for run in runs} == {
        (architecture, dtype, mode)
        for architecture, dtype in (("llama", "bf16"), ("llama", "fp8"), ("nemotron4", "bf16"))
        for mode in ("performance", "profile")
    }
    assert {run.recipe.model.num_layers for run in runs} == {2}
    assert {(run.recipe.model.hidden_size, run.recipe.model.seq_length) for run in runs} == {
        (4096, 8192),
        (6144, 4096),
    }


def test_the_report_counts_the_layers_that_were_trained(planned_folder: Path) -> None:
    for path in planned_folder.glob("*-performance/run.json"):
        run = read_run(path)
        started = {"world_size": 1, "loop": "thin", "global_batch_size": run.recipe.global_batch_size}
        steps = [
            f"Training epoch 0, iteration {step}/29 | global_batch_size: 16 | global_step: {step} | "
            f"reduced_train_loss: 8.1 | train_step_timing in s: {STEP_S}"
            for step in range(30)
        ]
        ended = 'steptime.result {"state": "completed"}'
        lines = ["steptime.start " + json.dumps(started), *steps, ended]
        path.with_name("log.out").write_text("\n".join(lines) + "\n")
    done = one_gpu("report", str(planned_folder))
    assert done.returncode == 0, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if "llama3.1-25.04-8b-bf16" in line)
    # By the document, of two layers and the output: attention, MLP, vocabulary, for 8192 tokens.
    flops = 8192 * (24 * 4096 * (4096 * 1.25 + 8192) + 36 * 14336 * 4096 + 6 * 128256 * 4096)
    mfu = 16 * flops / STEP_S / 1e12 / 989 * 100
    assert f" {mfu:.5g} " in row
    assert " 62.47 " in row  # published: the whole model on 8 H100


def test_a_log_that_is_missing_is_named(planned_folder: Path) -> None:
    done = one_gpu("report", str(planned_folder))
    assert done.returncode == 2
    assert done.stdout.count("no log.out") == 3
