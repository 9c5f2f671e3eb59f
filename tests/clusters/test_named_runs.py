"""Runs of recipes by name, from the job script to the verdict, with a stand-in for Megatron-Bridge's script.

The stand-in takes what the parser of its release takes, which was recorded from upstream's source. It trains
nothing.
"""

import os
import sys
from pathlib import Path

import pytest
from called import captured
from named_runs import IN_IMAGE, SAVED_AT, run_of

from steptime.clusters import jobscript
from steptime.clusters.base import Job, JobState, JobStatus
from steptime.errors import SystemFailure
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.bridge_launch import CHECKPOINTS, bridge_command
from steptime.recipes.models import Mode

STAND_IN = Path(__file__).parents[1] / "stand_ins" / "megatron_bridge"


def started(run, folder):
    """Run the stand-in in the folder, with the arguments and variables of a rank."""
    script, *arguments = bridge_command(run)
    variables = {
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": str(STAND_IN),
        "STAND_IN_RELEASE": run.recipe.workload.rpartition("-")[2],
    }
    assert Path(script).name in ("run_script.py", "bootstrap.py")
    return captured(
        [sys.executable, STAND_IN / "run_script.py", *arguments], cwd=folder, env={**os.environ, **variables}
    )


def log_of(run, folder):
    ended = started(run, folder)
    assert ended.returncode == 0, ended.stderr
    path = folder / f"log-{run.mode.value}.out"
    path.write_text(ended.stdout)
    return path


def judged(run, path):
    log = read_log(path, first_step=run.first_step, max_steps=run.max_steps)
    status = JobStatus(state=JobState.SUCCEEDED)
    return {check.name: check for check in validate(run, status, log, measure(run, log)).checks}


@pytest.mark.parametrize("release", ["25.11", "26.02", "26.04", "26.06", "26.08"])
def test_a_run_is_measured_and_valid_without_flops(release, tmp_path):
    run = run_of(release)
    path = log_of(run, tmp_path)
    checks = judged(run, path)
    assert not [check for check in checks.values() if not check.passed]
    assert not {"parallelism_as_planned", "training_completed"} & checks.keys(), "nothing states them"
    log = read_log(path, first_step=0, max_steps=SAVED_AT)
    measured = measure(run, log)
    assert (measured.step_time_mean_s, measured.flops_per_sample) == (2.0, None)
    assert (measured.model_tflops_per_gpu, measured.mfu_percent) == (400.0, pytest.approx(100 * 400 / 989))
    assert measured.flops_source == "the TFLOPS that a run logs"
    assert measured.tokens_per_s_per_gpu == pytest.approx(4096 * 1280 / 2 / 64)


@pytest.mark.parametrize("release", ["25.11", "26.08"])
async def test_a_checkpoint_is_saved_and_loaded(release, tmp_path, local):
    job = Job(
        **{"cluster": "local", "job_id": "1", "name": "saving", "log_path": "log", "submitted_at": 1.0},
        directory=str(tmp_path),
    )
    (unfinished := tmp_path / CHECKPOINTS / "iter_0000006").mkdir(parents=True)  # no tracker of upstream's
    with pytest.raises(SystemFailure, match="left 0 checkpoints"):
        await jobscript.find_saved_checkpoint(local, job)
    unfinished.rmdir()
    saving = run_of(release, Mode.CHECKPOINT_SAVE)
    checks = judged(saving, log_of(saving, tmp_path))
    assert checks["checkpoint_saved"].passed

    saved = await jobscript.find_saved_checkpoint(local, job)
    assert saved == str(tmp_path / CHECKPOINTS)

    loading = run_of(release, Mode.CHECKPOINT_LOAD, checkpoint_path=saved)
    checks = judged(loading, log_of(loading, tmp_path))
    assert not [check for check in checks.values() if not check.passed]
    assert checks["resumed_at_saved_step"].message == f"Training resumed at global step {SAVED_AT}."

    elsewhere = loading.model_copy(update={"first_step": SAVED_AT - 1})
    told = judged(elsewhere, tmp_path / f"log-{loading.mode.value}.out")["resumed_at_saved_step"]
    assert (told.passed, told.message) == (
        False,
        "Expected that training resumed at global step 5, but the load lines give iteration 6.",
    )


SCRIPTS = "/opt/Megatron-Bridge/scripts/performance"


def script_of(run, config):
    spec = jobscript.job_spec(run, IN_IMAGE, config, identity="d/r/c", started=1_700_000_000)  # type: ignore[arg-type]
    return spec.script


def test_a_local_script(make_config):
    text = script_of(run_of(), make_config(container="bwrap", gpu_type="h100"))
    assert (
        f" {SCRIPTS}/run_script.py --model_family_name=gpt_oss --model_recipe_name=gpt_oss_120b --gpu=h100 "
        in text
    )
    assert f"STEPTIME_TRAINER=/work/trainer:{SCRIPTS} \\\n" in text
    assert "-m trainer" not in text


def test_a_script_for_runai(make_runai_config):
    text = script_of(run_of("26.08"), make_runai_config(gpu_type="h100"))
    assert f"  {SCRIPTS}/bootstrap.py --model_family_name=gpt_oss " in text
    assert '"${meeting[@]}" --nproc-per-node="$((ranks / pods))" \\\n' in text
