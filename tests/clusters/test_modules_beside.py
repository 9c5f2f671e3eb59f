"""Programs of one's own that import modules beside their script, really started on clusters."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from printed_tables import config_with
from staged import staged_files

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.planning import PlanRequest, plan

from .conftest import end_of

ROOT = Path(__file__).parents[2]
TORCHRUN = ROOT / "tests" / "stand_ins" / "torchrun"
OWN_PROGRAM = ROOT / "tests" / "data" / "own_program"
TITAN = ROOT / "tests" / "data" / "torchtitan"


def planned(config_folder, monkeypatch, launcher):
    """Plan two ranks of the workload for torchtitan with another launcher."""
    folder = config_with(TITAN, config_folder)
    path = folder / "workloads" / "titan-llama3-26.11.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"launcher": {"kind": "command"} | launcher}))
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder))
    return plan(PlanRequest(workload="titan-llama3-26.11", gpus="2")).runs[0]


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def cluster_and_config(request):
    """Return a cluster and its configuration."""
    make = "make_slurm_config" if request.param == "slurm" else "make_config"
    return request.getfixturevalue(request.param), request.getfixturevalue(make)()


async def ended(cluster_and_config, run):
    """Start a run on a cluster, and wait until it has succeeded."""
    cluster, config = cluster_and_config
    staged = staged_files(sys.executable, f"{ROOT}:{TORCHRUN}")
    job = await cluster.submit(job_spec(run, staged, config, identity="d/r/c", started=1_700_000_000))
    status = await end_of(cluster, job.name)
    assert status.state is JobState.SUCCEEDED, Path(job.log_path).read_text()
    return job


def test_steps_are_in_the_log_although_the_program_is_killed_after_them(
    monkeypatch,
):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    program = "import os; print('iteration 1/50'); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-m", "trainer.command", "python", "-c", program]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout) == (-9, "iteration 1/50\n")


async def test_files_of_the_workload_import_each_other(cluster_and_config, config_folder, monkeypatch):
    files = {
        # Each rank's line in one write, as the ranks share the log: an unbuffered `print` writes pieces.
        "train.py": (
            "import os, helper, json\nos.write(1, (json.dumps(helper.seen(os.environ)) + chr(10)).encode())\n"
        ),
        "helper.py": (
            "def seen(variables):\n"
            "    names = ('RANK', 'WORLD_SIZE', 'PYTHONPATH', 'PYTHONSAFEPATH')\n"
            "    return {name: variables.get(name) for name in names}\n"
        ),
    }
    run = planned(config_folder, monkeypatch, {"command": ["python", "train.py"], "files": files})
    job = await ended(cluster_and_config, run)
    lines = [line for line in Path(job.log_path).read_text().splitlines() if '"RANK"' in line]
    without_ours = f'"WORLD_SIZE": "2", "PYTHONPATH": "{TORCHRUN}", "PYTHONSAFEPATH": null'
    assert sorted(lines) == [f'{{"RANK": "{rank}", {without_ours}}}' for rank in (0, 1)]


async def test_a_program_that_imports_modules_of_its_folder_is_read_and_valid(
    cluster_and_config, config_folder, monkeypatch
):
    """Megatron-LM's `pretrain_gpt.py`, which is in no package, imports `gpt_builders` from beside it, too."""
    program = OWN_PROGRAM / "pretrain_gpt.py"
    run = planned(
        config_folder, monkeypatch, {"command": ["python", str(program), "--train-iters={max_steps}"]}
    )
    job = await ended(cluster_and_config, run)
    log = read_log(job.log_path, max_steps=run.max_steps)
    verdict = validate(
        run, (await cluster_and_config[0].poll([job.name]))[job.name], log, measured := measure(run, log)
    )
    assert verdict.valid, verdict.reason
    assert (len(log.steps), measured.step_time_mean_s) == (50, 0.5)


@pytest.mark.parametrize(
    "first_words",
    [["env", "-u", "NAME_OF_NONE"], ["sh", "-c", 'exec "$@"', "sh"], ["nice"]],
    ids=lambda of: of[0],
)
async def test_python_is_the_environments_behind_any_first_word(
    first_words,
    cluster_and_config,
    config_folder,
    monkeypatch,
):
    program = "import os, sys; os.write(1, ('interpreter ' + sys.executable + chr(10)).encode())"
    command = [*first_words, "python", "-c", program]
    job = await ended(cluster_and_config, planned(config_folder, monkeypatch, {"command": command}))
    assert Path(job.log_path).read_text().count(f"interpreter {sys.executable}") == 2


async def test_a_checkout_is_found_by_a_python_path_in_the_command(
    cluster_and_config,
    config_folder,
    tmp_path,
    monkeypatch,
):
    (package := tmp_path / "checkout" / "titan").mkdir(parents=True)
    (package / "train.py").write_text("print('trained by the checkout', flush=True)\n")
    command = ["env", f"PYTHONPATH={package.parent}", "python", "-m", "titan.train"]
    job = await ended(cluster_and_config, planned(config_folder, monkeypatch, {"command": command}))
    assert Path(job.log_path).read_text().count("trained by the checkout") == 2
