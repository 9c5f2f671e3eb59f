"""benchmarks/one_gpu from plan to report, on the CPU; tests/trainer/test_thin_loop.py has the loop itself."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from called import captured

from steptime.logs.reader import read_log
from steptime.recipes.models import Run
from steptime.results.metrics import measure_window
from trainer.run import read_run
from trainer.spec import PlannedRun

from .jobs import ROOT

MODELS = ("llama3.1-8b-bf16", "llama3.1-8b-fp8", "nemotron4-15b-bf16")


def one_gpu(
    *arguments: str | Path, python: str | Path = sys.executable, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run the program in a folder outside the repository."""
    command = [str(python), str(ROOT / "benchmarks" / "one_gpu"), *map(str, arguments)]
    return captured(command, env={"PATH": os.environ["PATH"], **environment}, cwd="/", timeout=1200)


def planned(folder: Path, gpu_type: str) -> dict[str, list[PlannedRun]]:
    """Return the runs of each model, as the trainer reads them: few layers, many, and a profile of few."""
    done = one_gpu("plan", folder, "--gpu-type", gpu_type)
    assert done.returncode == 0, done.stderr
    models = {path.parent: json.loads(path.read_bytes()) for path in sorted(folder.glob("*/model.json"))}
    return {
        place.name: [read_run(place / name / "run.json") for name in model["runs"]]
        for place, model in models.items()
    }


def measurement(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "measurement.json").read_bytes())
    return found


def table(done: "subprocess.CompletedProcess[str]") -> dict[tuple[str, str], list[str]]:
    """Return the printed rows by model and layers."""
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    return {(row[0].strip(), row[1].strip()): [cell.strip() for cell in row[2:]] for row in rows}


@pytest.mark.parametrize("gpu_type", ["h100", "cpu"])
def test_the_thin_loop_takes_every_plan(tmp_path: Path, gpu_type: str) -> None:
    from one_gpu import limits

    models = planned(tmp_path, gpu_type)
    assert tuple(models) == MODELS
    for name, (few, many, profiled) in models.items():
        for run in (few, many, profiled):
            limits.check(run)
            assert (run.recipe.gpu_type, run.recipe.dtype) == (gpu_type, name.rpartition("-")[2])
            assert not run.settings.cuda_graphs
        assert few.recipe.model.num_layers == profiled.recipe.model.num_layers < many.recipe.model.num_layers
        assert (few.mode, many.mode, profiled.mode) == ("performance", "performance", "profile")
    true = {"hidden_size": 4096, "seq_length": 8192, "vocab_size": 128256}
    if gpu_type != "cpu":
        shape = models["llama3.1-8b-bf16"][0].recipe.model
        assert {name: getattr(shape, name) for name in true} == true


def test_the_depths_fit_the_memory_and_ten_minutes(tmp_path: Path) -> None:
    """The estimates are 16 bytes a parameter, an MFU of 40 %, and a minute for each start and compilation."""
    from one_gpu import planning as program

    models = planned(tmp_path, "h100")
    found = [tuple(run.recipe.model.num_layers for run in runs[:2]) for runs in models.values()]
    assert found == [(2, 11), (2, 11), (1, 2)]
    for name, runs in models.items():
        peak = json.loads((tmp_path / name / "model.json").read_bytes())["peak_tflops"]
        assert sum(program.seconds(run, peak) + 60 for run in runs) < program.WITHIN_S
        assert program.memory_gib(runs[1].recipe) < 74
    # As in docs/reference/trainer.md: counted in Megatron's modules without the norms, to three digits.
    for name, whole in (("llama3.1-8b-bf16", 8.03e9), ("nemotron4-15b-bf16", 15.63e9)):
        recipe = program.published_recipe(*name.split("-"))
        assert program.parameters(recipe.model) == pytest.approx(whole, rel=1e-3)


@pytest.fixture(scope="module")
def bare_python(trainer_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with only torch, numpy, and what these two require."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([trainer_python, "-m", "venv", "--without-pip", str(folder)], check=True)
    program = Path(__file__).parent / "programs" / "installed_files.py"
    listed = subprocess.run(
        [trainer_python, str(program), "torch", "numpy"], stdout=subprocess.PIPE, text=True, check=True
    )
    (site,) = folder.glob("lib/python*/site-packages")
    for path in map(Path, json.loads(listed.stdout)):
        (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.mark.trainer
@pytest.mark.timeout(1500)
def test_three_commands_measure_the_table(bare_python: Path, torchao_wheel: Path, tmp_path: Path) -> None:
    """They run outside the repository, with a PYTHONPATH of the user's own, which is kept."""
    name = "llama3.1-8b-fp8"
    few, many, _ = planned(tmp_path / "plan", "cpu")[name]
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('the own path is kept', flush=True)\n")
    results = tmp_path / "results"
    measure = ["measure", tmp_path / "plan" / name, "--output", results, "--library", torchao_wheel]
    done = one_gpu(*measure, python=bare_python, PYTHONPATH=str(own))
    assert done.returncode == 0, done.stdout + done.stderr

    rows = table(one_gpu("report", results, python=bare_python))
    depths = [run.recipe.model.num_layers for run in (few, many)]
    places = [results / name / f"{layers}-layers" for layers in depths]
    found = [measurement(place) for place in places]
    for place, one in zip(places, found, strict=True):
        assert one["started"]["versions"]["nemo"] is None, "the environment is bare"
        assert "the own path is kept" in (place / "log.out").read_text()
        run = Run.model_validate_json((place / "run.json").read_bytes())
        log = read_log(place / "log.out", max_steps=run.max_steps)
        assert log.problems == ()
        read = measure_window(log, run.window).model_dump()
        for name_of_time in ("step_time_mean_s", "step_time_median_s", "wall_time_median_s"):
            assert read[name_of_time] == pytest.approx(one[name_of_time], rel=1e-3)  # has four digits
    means = [one["step_time_mean_s"] for one in found]
    layer_s = (means[1] - means[0]) / (depths[1] - depths[0])
    whole = json.loads((results / name / "model.json").read_bytes())["layers"][2]
    assert rows[name, "each"][0].startswith(f"{layer_s:.4g} ± ")
    assert rows[name, str(whole)][0] == f"{means[0] + (whole - depths[0]) * layer_s:.4g}"
    profile = results / name / f"{depths[0]}-layers-profile"
    assert measurement(profile)["state"] == "completed"
    assert (profile / "torch_profile" / "rank0.json.gz").is_file()


def test_what_no_run_can_do_ends_all(tmp_path: Path) -> None:
    """The plan is for a GPU, but torch, which is looked for first, is missing in this environment."""
    planned(tmp_path / "plan", "h100")
    done = one_gpu("measure", tmp_path / "plan" / MODELS[0], "--output", tmp_path / "results")
    assert done.returncode == 1
    assert done.stdout.count("the thin loop needs torch, which is not installed here.") == 2
    assert "11-layers …" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_report_extrapolates_with_what_lies_outside_the_layers_once(tmp_path: Path) -> None:
    """Each layer takes 0.5 s in the runs of 2 and 11 layers, and everything else 1 s."""
    planned(tmp_path, "h100")
    for layers in (2, 11):
        mean = 1 + 0.5 * layers
        found = {
            "state": "completed",
            "window": [10, 24],
            "step_time_mean_s": mean,
            "step_time_median_s": mean,
            "step_time_std_s": 0.9,
            "wall_time_median_s": 1.04 * mean,
            "peak_memory_bytes": 60 * 2**30,
        }
        place = tmp_path / "llama3.1-8b-bf16" / f"{layers}-layers"
        (place / "measurement.json").write_text(json.dumps(found))
    done = one_gpu("report", tmp_path)
    assert done.returncode == 2, "the other two models are missing"
    rows = table(done)
    assert rows["llama3.1-8b-bf16", "each"][0] == f"0.5 ± {0.9 * math.sqrt(2 / 15) / 9:.2g}"
    assert rows["llama3.1-8b-bf16", "none"][0] == "1"
    whole_s = 1 + 32 * 0.5
    flops = 16 * 4.7442203e14  # of 32 layers, as in docs/reference/metrics.md
    mfu = f"{100 * flops / whole_s / 989e12:.4g}"
    step, wall, tokens, document, exact, _, remark = rows["llama3.1-8b-bf16", "32"]
    assert (step, wall, tokens) == ("17", "", f"{16 * 8192 / whole_s:.4g}")
    assert (document, exact) == (mfu, mfu)
    assert remark.endswith("published 62.47 on 8 × h100, by llama3.1-25.04")
    assert rows["llama3.1-8b-bf16", "2"][-1] == "wall time +4.0 %"
    assert rows["nemotron4-15b-bf16", "1"][-1] == "not measured"
