"""What a pod runs: the job's script (compared with a golden copy, and really run), and what starts it."""

import os
from pathlib import Path

import pytest
from called import captured
from staged import staged_files

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.clusters.runai.cluster import connect
from steptime.errors import UserError
from steptime.recipes.models import Mode, ProfileWindow
from steptime.staging.stage import stage

from .conftest import end_of

GOLDEN = Path(__file__).parent / "golden" / "runai.sh"
START = Path(job_spec.__code__.co_filename).parent / "runai" / "start.sh"
STAGED = staged_files(
    "/nemo-workspace/venvs/trainer-0123456789abcdef/bin/python",
    "/nemo-workspace/trainer/fedcba9876543210",
    venv_lock_sha256="a" * 64,
)
SHOWS_ARGUMENTS = """#!/bin/sh
echo "$*"
touch "shown-$RANK"
# As soon as the first pod has ended, Run:ai ends the others.
while test "${WORLD_SIZE:-1}" -gt 1 && test ! -e shown-1; do sleep 0.02; done
"""


@pytest.fixture
def run(make_result):
    """Return a planned run of a tiny Llama on two ranks."""
    return make_result(gpus=2, environment={"OMP_PROC_BIND": "close", "WORDS": "a 'b' $(c)"}).run


def spec_of(run, config, staged=STAGED):
    return job_spec(run, staged, config, identity="llama31/manual/0", started=1_790_000_000)


def test_the_script_is_as_reviewed(run, make_runai_config):
    """After an intended change, write the new script to the golden file and review the difference."""
    pvcs = [{"claim": "workspace", "path": "/nemo-workspace"}]
    config = make_runai_config(pvcs=pvcs, work_dir="/nemo-workspace/steptime")
    assert spec_of(run, config).script == GOLDEN.read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("gpus_per_node", "arguments"),
    [
        (2, ["--standalone --local-addr=127.0.0.1 --nproc-per-node=2"]),
        (
            1,
            [
                "--nnodes=2 --node-rank=0 --master-addr=127.0.0.1 --master-port=PORT --nproc-per-node=1",
                "--nnodes=2 --node-rank=1 --master-addr=127.0.0.1 --master-port=PORT --nproc-per-node=1",
            ],
        ),
    ],
    ids=["one pod", "two pods"],
)
async def test_each_pod_starts_its_share_of_the_ranks(
    run,
    runai_with,
    make_runai_config,
    tmp_path,
    gpus_per_node,
    arguments,
):
    python = tmp_path / "python"
    python.write_text(SHOWS_ARGUMENTS)
    python.chmod(0o755)
    config = make_runai_config(gpus_per_node=gpus_per_node)
    spec = spec_of(run, config, STAGED.model_copy(update={"python": str(python)}))
    async with runai_with(gpus_per_node=gpus_per_node) as cluster:
        job = await cluster.submit(spec)
        assert (await end_of(cluster, spec.name)).state is JobState.SUCCEEDED
        logs = [
            (await cluster.read(job.log_path + ("" if rank == 0 else f".{rank}"))).decode()
            for rank in range(len(arguments))
        ]
    ports = {word.split("=")[1] for log in logs for word in log.split() if word.startswith("--master-port")}
    assert len(ports) <= 1
    for log, expected in zip(logs, arguments, strict=True):
        shown = log.strip()
        for port in ports:
            shown = shown.replace(port, "PORT")
        assert shown == f"-m torch.distributed.run {expected} -m trainer run.json"


def start(folder, script, **variables):
    """Start a script as a pod does; return the ended process."""
    folder.mkdir(exist_ok=True)
    (folder / "job.sh").write_text(script)
    pod_variables = {
        "STATE": str(folder),
        "DIRECTORY": str(folder),
        "SCRIPT": str(folder / "job.sh"),
        "LOG": str(folder / "log"),
        "TIME_LIMIT_S": "60",
        "GRACE_S": "5",
        "PODS": "1",
        "NODE": "node-7",
    }
    environment = {f"STEPTIME_{name}": value for name, value in pod_variables.items()}
    return captured(["/bin/bash", str(START)], env={"PATH": os.environ["PATH"], **environment, **variables})


def test_a_pod_that_comes_again_does_not_run_the_job_again(tmp_path):
    """Pods start again after a preemption, or when somebody resumes the workload."""
    assert start(tmp_path, "echo ran >> count; exit 3").returncode == 3
    ended = (tmp_path / "ended-0").read_text()
    assert start(tmp_path, "echo ran >> count; exit 3").returncode == 75
    assert (tmp_path / "count").read_text() == "ran\n"
    assert (tmp_path / "ended-0").read_text() == ended
    assert (tmp_path / "log").read_text() == (
        "steptime: this pod was started a second time; the job is not run again\n"
    )


@pytest.mark.long
async def test_a_recipes_image_is_what_its_pods_are_started_in(run, runai, runai_server, make_runai_config):
    """Commands in Run:ai stage the trainer's code; the node that runs the pod fetches the image."""
    name = "nvcr.io/nvidia/nemo:25.07.01"
    planned = run.model_copy(update={"recipe": run.recipe.model_copy(update={"image": name})})
    config = make_runai_config(image="ubuntu:24.04")
    async with connect(config, runai._connections) as cluster:
        staged = await stage(cluster, config, planned, print)
        assert (staged.python, staged.image, staged.image_digest) == (None, name, None)
        assert Path(staged.trainer_path, "trainer", "__main__.py").is_file()
        spec = spec_of(planned, config, staged)
        await cluster.submit(spec)
        await cluster.cancel(spec.name)
    made = [entry.request for entry in runai_server.calls("POST", "/workloads/trainings")]
    assert {request["spec"]["image"] for request in made[:-1]} == {"ubuntu:24.04"}  # the commands
    assert made[-1]["spec"]["image"] == name
    assert " steptime \\\n  python -m torch.distributed.run" in spec.script


def test_what_only_nsight_samples_is_refused(run, make_runai_config):
    profile = ProfileWindow(first_step=1, last_step=2, ranks=(0,), gpu_metrics=True)
    recipe = run.recipe.model_copy(update={"gpu_type": "h100"})
    profiled = run.model_copy(update={"recipe": recipe, "mode": Mode.PROFILE, "profile": profile})
    with pytest.raises(
        UserError, match="`gpu_metrics` needs Nsight Systems, which clusters of kind runai never use"
    ):
        make_runai_config().check(profiled)
    by_torch = profile.model_copy(update={"gpu_metrics": False})
    make_runai_config().check(profiled.model_copy(update={"profile": by_torch}))
