"""The loop without NeMo of benchmarks/one_gpu takes the same steps as NeMo, given equal plan and weights."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from called import captured

from one_gpu import limits
from steptime.logs.reader import read_log
from steptime.recipes.models import Mode, Performance, Run, TrainerSettings, Window
from steptime.results.log_rows import log_row
from trainer.errors import TrainerError
from trainer.run import read_run

from .conftest import Train
from .jobs import ROOT, Trained, planned, write_run

pytestmark = pytest.mark.timeout(1500)

STEPS = 6
ROUNDING = 1e-6
"""Relative tolerance of a loss in float32; at most 1.3e-7 was measured."""

THIN_LOOP = f"""
import sys
sys.path.insert(0, "{ROOT}/benchmarks")
from one_gpu.train import main
sys.exit(main())
"""


def train_thin(train: Train, run: Run, folder: Path) -> Trained:
    program = folder / "thin_loop.py"
    program.write_text(THIN_LOOP, encoding="utf-8")
    return train(run, folder, program=str(program))


@pytest.fixture(scope="module", params=["llama3.1", pytest.param("nemotron4", marks=pytest.mark.exhaustive)])
def twins(
    request: pytest.FixtureRequest, train: Train, tmp_path_factory: pytest.TempPathFactory
) -> list[Trained]:
    """Return one plan's training by NeMo, and by the thin loop."""
    run = planned(workload=request.param, max_steps=STEPS, window=Window(first=3, last=5))
    nemo = train(run, tmp_path_factory.mktemp("nemo"))
    trained = [nemo, train_thin(train, run, tmp_path_factory.mktemp("thin"))]
    assert [one.exit_code for one in trained] == [0, 0], trained[1].log
    return trained


@pytest.mark.trainer
def test_it_takes_nemos_steps(twins: list[Trained]) -> None:
    nemo, thin = twins
    assert list(thin.losses) == list(range(STEPS))
    assert thin.losses == pytest.approx(nemo.losses, rel=ROUNDING)
    rates = [[step["learning_rate"] for step in one.history] for one in twins]
    assert rates[1] == pytest.approx(rates[0], rel=ROUNDING)


@pytest.mark.trainer
def test_its_result_names_the_loop(twins: list[Trained]) -> None:
    nemo, thin = (one.record("start") for one in twins)
    assert (nemo.pop("loop"), thin.pop("loop")) == ("nemo", "thin")
    same = nemo.keys() - {"peak_tflops_per_rank", "peak_source", "imports_s"}  # measured in one or each
    assert {name: thin[name] for name in same} == {name: nemo[name] for name in same}
    row = log_row([twins[1].folder / "log.out"])
    assert row["state"] == "complete"
    assert row["mfu_percent"] is not None
    assert "trained by the trainer's thin loop, not by NeMo" in row["warnings"]
    assert "thin" not in (log_row([twins[0].folder / "log.out"])["warnings"] or "")


@pytest.mark.trainer
def test_the_pipeline_reads_its_log_whole(twins: list[Trained]) -> None:
    thin = twins[1]
    log = read_log(thin.folder / "log.out", max_steps=STEPS)
    assert log.problems == ()
    assert log.ended == thin.record("result")
    exact = [step["step_time_s"] for step in thin.history]
    assert [step.step_time_s for step in log.steps] == pytest.approx(exact, rel=5e-4)
    first, *walls = (step["wall_time_s"] for step in thin.history)
    assert first is log.steps[0].wall_time_s is None
    assert [step.wall_time_s for step in log.steps[1:]] == pytest.approx(walls, rel=5e-4)


@pytest.mark.trainer
def test_fp8_without_torchao(train: Train, tmp_path: Path) -> None:
    run = planned()
    recipe = run.recipe.model_copy(update={"dtype": "fp8"})
    fp8 = Performance(trainer=TrainerSettings(fp8_recipe="current"))
    ended = train_thin(train, run.model_copy(update={"recipe": recipe, "performance": fp8}), tmp_path)
    assert ended.exit_code == 1
    assert "trainer: the thin loop computes fp8 by torchao, which is not installed here." in ended.log
    assert "Traceback" not in ended.log


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workload": "nemotron-h"}, "no architecture 'nemotron_h'; it has: llama, nemotron4."),
        ({"mode": Mode.CHECKPOINT_SAVE}, "no mode 'checkpoint_save'; it has: performance, profile."),
    ],
)
def test_what_it_does_not_have(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    (path,) = write_run(planned(**changes), tmp_path)
    with pytest.raises(TrainerError) as refused:
        limits.check(read_run(Path(path)))
    assert str(refused.value) == f"the thin loop has {reason}"


NVIDIA_SMI = """\
#!/bin/sh
echo "NVIDIA H200, 570.86, 1980, 700.00, 1980, 3201, 650.50, 61"
echo "NVIDIA H200, 570.86, 1980, 700.00, 1755, 3201, 699.50, 67"
echo "NVIDIA H200, 570.86, 1980, 70"
touch "$TOLD"
exec sleep 60
"""
WAITS_FOR_IT = """import os, pathlib, time
from one_gpu import gpu_state
with gpu_state.recorded():
    while "TOLD" in os.environ and not pathlib.Path(os.environ["TOLD"]).exists():
        time.sleep(0.01)
"""


@pytest.mark.parametrize("there", [True, False])
def test_the_gpus_state_is_recorded(tmp_path: Path, *, there: bool) -> None:
    """A stand-in for nvidia-smi prints the state, and runs until it is ended."""
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT}/benchmarks"}
    if there:
        smi = tmp_path / "nvidia-smi"
        smi.write_text(NVIDIA_SMI)
        smi.chmod(0o755)
        environment["TOLD"] = str(tmp_path / "told")
    ended = captured([sys.executable, "-c", WAITS_FOR_IT], env=environment, check=True, timeout=60)
    state = json.loads(ended.stdout.removeprefix("steptime.gpu "))
    if not there:
        assert state == {"error": "nvidia-smi could not be started: No such file or directory"}
        return
    assert state["name"] == "NVIDIA H200"
    assert state["power_w"] == {"lowest": 650.5, "mean": 675.0, "highest": 699.5}
    assert state["sm_clock_mhz"] == {"lowest": 1755.0, "mean": 1867.5, "highest": 1980.0}
    assert state["samples"] == 2
