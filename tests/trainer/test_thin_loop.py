"""The loop without NeMo against NeMo itself: the same plan, the same weights, the same steps.

Nothing in the product starts it: `make test` holds one model to NeMo, `make test-all` tests the rest of it.
"""

import gzip
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime.logs.reader import read_log
from steptime.recipes.models import Mode, ProfileWindow, Run, Window
from steptime.recipes.performance import Fp8Recipe, Performance, TrainerSettings
from steptime.results.log_rows import log_row

from .jobs import ROOT, THIN_LOOP, Trained, light_trainer, planned, start_trainer, write_run

Train = Callable[..., Trained]

pytestmark = pytest.mark.timeout(2400)

STEPS = 6
ROUNDING = 1e-6
"""Relative, of a loss in float32; measured: 1.3e-7 at most."""


@pytest.fixture(scope="module", params=["llama3.1", pytest.param("nemotron4", marks=pytest.mark.exhaustive)])
def twins(
    request: pytest.FixtureRequest,
    train: Train,
    train_in_job: Train,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Trained]:
    """One plan, trained by NeMo and by the thin loop."""
    run = planned(workload=request.param, max_steps=STEPS, window=Window(first=3, last=5))
    nemo = train(run, tmp_path_factory.mktemp("nemo"))
    trained = [nemo, train_in_job(run, tmp_path_factory.mktemp("thin"), module=THIN_LOOP)]
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
    same = nemo.keys() - {"peak_tflops_per_rank", "peak_source", "imports_s"}  # measured by each, or by one
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


@pytest.fixture(scope="module")
def of_dtypes(
    train_in_job: Train, tmp_path_factory: pytest.TempPathFactory, torchao_wheel: Path
) -> dict[str, dict[int, float]]:
    """The losses of one plan in each number format."""
    libraries = tmp_path_factory.mktemp("libraries")
    with zipfile.ZipFile(torchao_wheel) as wheel:
        wheel.extractall(libraries)
    losses = {}
    for dtype, fp8_recipe in (("fp32", None), ("bf16", None), ("fp8", "current")):
        folder = tmp_path_factory.mktemp(dtype)
        run = _in(planned(max_steps=STEPS), dtype, fp8_recipe)
        path = os.pathsep.join((str(folder / "package"), str(libraries)))
        trained = train_in_job(run, folder, module=THIN_LOOP, PYTHONPATH=path)
        assert trained.exit_code == 0, trained.log
        losses[dtype] = trained.losses
    return losses


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_bf16_stays_near_fp32(of_dtypes: dict[str, dict[int, float]]) -> None:
    """Weights and gradients are kept in fp32; what the model computes with has three digits of them."""
    assert of_dtypes["bf16"] == pytest.approx(of_dtypes["fp32"], rel=5e-3)
    assert of_dtypes["bf16"] != of_dtypes["fp32"]


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_fp8_by_torchao_stays_near_bf16(of_dtypes: dict[str, dict[int, float]]) -> None:
    """On the CPU torchao rounds to FP8 and multiplies in bf16: the numbers of a GPU, at no GPU's speed."""
    assert of_dtypes["fp8"] == pytest.approx(of_dtypes["bf16"], rel=1e-2)
    assert of_dtypes["fp8"] != of_dtypes["bf16"]


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_compiled_it_takes_the_same_steps(
    train_in_job: Train, tmp_path: Path, of_dtypes: dict[str, dict[int, float]]
) -> None:
    """By torch.compile, as on GPUs; for the CPU it needs a C++ compiler."""
    compiled = train_in_job(planned(max_steps=STEPS), tmp_path, "--compile", "default", module=THIN_LOOP)
    assert compiled.exit_code == 0, compiled.log
    assert compiled.losses == pytest.approx(of_dtypes["fp32"], rel=ROUNDING)


@pytest.fixture(scope="module")
def parts(trainer_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What programs/thin_parts.py found."""
    program = Path(__file__).parent / "programs" / "thin_parts.py"
    done = start_trainer(
        [trainer_python, str(program)],
        [],
        cwd=tmp_path_factory.mktemp("parts"),
        PYTHONPATH=f"{ROOT}:{ROOT}/benchmarks",
    )
    assert done.returncode == 0, done.stdout
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_norms_are_computed_in_fp32(parts: dict[str, Any]) -> None:
    """With `1 + weight` in bf16 a quarter of a LayerNorm's values came out rounded otherwise."""
    assert set(parts["rounded_otherwise"]) == {"llama", "nemotron4"}
    assert max(parts["rounded_otherwise"].values()) < 1e-3


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_one_layer_is_compiled_for_all(parts: dict[str, Any]) -> None:
    of_one_layer, of_six = parts["compiled_graphs"]
    assert of_one_layer == of_six >= 2  # a layer, and the output with its loss


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_adam_takes_the_same_step_in_parts(parts: dict[str, Any]) -> None:
    (one_part, at_once), (several, in_parts) = parts["at_once"], parts["in_parts"]
    assert one_part == 1 < several
    assert in_parts == at_once
    assert in_parts[0] != in_parts[1]


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_no_run_compiles_into_the_cache_of_another(parts: dict[str, Any]) -> None:
    """A killed compilation leaves a broken one behind."""
    first, second = parts["caches"]
    assert first != second


@pytest.mark.trainer
def test_fp8_without_torchao(train_in_job: Train, tmp_path: Path) -> None:
    ended = train_in_job(_in(planned(), "fp8", "current"), tmp_path, module=THIN_LOOP)
    assert ended.exit_code == 1
    assert "trainer: the thin loop computes fp8 by torchao, which is not installed here." in ended.log
    assert "Traceback" not in ended.log


@pytest.mark.exhaustive
@pytest.mark.trainer
def test_a_profile_tells_what_took_longest(train_in_job: Train, tmp_path: Path) -> None:
    window = ProfileWindow(first_step=2, last_step=3, ranks=(0,))
    run = planned(mode=Mode.PROFILE, profile=window, max_steps=5)
    trained = train_in_job(run, tmp_path, module=THIN_LOOP)
    assert trained.exit_code == 0, trained.log
    assert "aten::mm" in trained.log
    with gzip.open(tmp_path / "torch_profile" / "rank0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workload": "nemotron-h"}, "no architecture 'nemotron_h'; it has: llama, nemotron4."),
        ({"mode": Mode.CHECKPOINT_SAVE}, "no mode 'checkpoint_save'; it has: performance, profile."),
    ],
)
def test_what_it_does_not_have(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    ended = light_trainer(write_run(planned(**changes), tmp_path), tmp_path, module=THIN_LOOP)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0] == f"trainer: the thin loop has {reason}"


def test_several_ranks_are_nemos(tmp_path: Path) -> None:
    ended = light_trainer(
        write_run(planned(2), tmp_path),
        tmp_path,
        module=THIN_LOOP,
        RANK="0",
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
    )
    assert ended.returncode == 1
    assert "the thin loop trains on one device, and the plan is for 2: plan one, or" in ended.stdout


def test_delayed_scaling_is_transformer_engines(tmp_path: Path) -> None:
    run = _in(planned(), "fp8", "delayed")
    ended = light_trainer(write_run(run, tmp_path), tmp_path, module=THIN_LOOP)
    assert ended.returncode == 1
    assert "the thin loop has no FP8 recipe 'delayed'; it has: current." in ended.stdout


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
    """By a stand-in for nvidia-smi, which goes on telling until it is ended."""
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT}/benchmarks"}
    if there:
        smi = tmp_path / "nvidia-smi"
        smi.write_text(NVIDIA_SMI)
        smi.chmod(0o755)
        environment["TOLD"] = str(tmp_path / "told")
    ended = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_IT],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    state = json.loads(ended.stdout.removeprefix("steptime.gpu "))
    if not there:
        assert state == {"error": "nvidia-smi could not be started: No such file or directory"}
        return
    assert state["name"] == "NVIDIA H200"
    assert state["power_w"] == {"lowest": 650.5, "mean": 675.0, "highest": 699.5}
    assert state["sm_clock_mhz"] == {"lowest": 1755.0, "mean": 1867.5, "highest": 1980.0}
    assert state["samples"] == 2


def _in(run: Run, dtype: str, fp8_recipe: Fp8Recipe | None = None) -> Run:
    """The run in another number format."""
    recipe = run.recipe.model_copy(update={"dtype": dtype})
    settings = TrainerSettings(fp8_recipe=fp8_recipe)
    return run.model_copy(update={"recipe": recipe, "performance": Performance(trainer=settings)})
