"""A user's own program, the real torchtitan from one YAML file: from the plan to the store."""

import re
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from named_runs import IN_IMAGE
from printed_tables import config_with
from staged import staged_files
from stored import publish
from torchtitan_environment import make_assets, torchtitan_python

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.errors import UserError
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.models import Mode
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import load_workload
from steptime.staging.checking import require_trainable
from steptime.store.run_queries import Store

from .conftest import end_of

ROOT = Path(__file__).parents[2]
TITAN = ROOT / "tests" / "data" / "torchtitan"
FILE = "titan-llama3-26.11.yaml"
RELEASES = {"0.2.2": "25.12", "0.3.0": "26.11"}
"""The workload's release for each release of torchtitan; pip installs 0.3.0 today."""


@pytest.fixture(autouse=True)
def config(config_folder, monkeypatch):
    """Return the shipped config with torchtitan's file in it."""
    folder = config_with(TITAN, config_folder)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder))
    return folder


def planned(**options):
    made = plan(PlanRequest(**{"workload": "titan-llama3-26.11", **options}))
    require_trainable(made.all_runs)
    return made.runs[0]


@pytest.mark.parametrize(
    ("release", "option"), [("25.12", "--job.config_file=llama3_8b.toml"), ("26.11", "--config=llama3_8b")]
)
def test_a_script_for_gpus_starts_the_program_on_each_rank(release, option, make_config):
    run = planned(workload=f"titan-llama3-{release}", gpu_type="h100", gpus="64")
    config = make_config(container="bwrap", gpu_type="h100")
    spec = job_spec(run, IN_IMAGE, config, identity="d/r/c", started=1_700_000_000)
    assert "--nproc-per-node=64 -m trainer.command python -m torchtitan.train" in spec.script
    assert f" {option} " in spec.script
    assert "--training.steps=50" in spec.script
    assert "--parallelism.data_parallel_shard_degree=32" in spec.script
    assert ('flavor = "8B"' in spec.files.get("llama3_8b.toml", "")) == (release == "25.12")
    assert run.model_flops is not None


# `make test` has one release on one kind of cluster, as the scripts for the others are reviewed.
@pytest.fixture(params=["local", pytest.param("slurm", marks=[pytest.mark.slurm, pytest.mark.exhaustive])])
def cluster_and_config(request):
    """Return a cluster and its configuration."""
    make = "make_slurm_config" if request.param == "slurm" else "make_config"
    return request.getfixturevalue(request.param), request.getfixturevalue(make)()


@pytest.fixture(scope="session", params=[pytest.param("0.2.2", marks=pytest.mark.exhaustive), "0.3.0"])
def titan(request, tmp_path_factory):
    """Return a release of torchtitan, the interpreter of its environment, and a folder with its assets."""
    python, assets = torchtitan_python(request.param), tmp_path_factory.mktemp("assets")
    make_assets(python, assets)
    return request.param, python, assets


def use_debug_model(path, version, assets):
    """Change a workload's file as little as a CPU asks for: torchtitan's debug model, assets, small steps."""
    text = path.read_text().replace("/workspace/assets", str(assets)).replace("per_gpu: 4", "per_gpu: 2")
    for model in ('flavor = "8B"', "--config=llama3_8b\n"):
        text = text.replace(model, model.replace("8B", "debugmodel").replace("8b", "debugmodel"))
    if version == "0.3.0":
        on_cpu = "--training.disable_cuda_graphs", "--parallelism.spmd_backend=partial_dtensor"  # torch 2.13
        text = text.replace(
            "    - --module", "".join(f"    - {option}\n" for option in on_cpu) + "    - --module"
        )
    path.write_text(text)


@pytest.mark.trainer
@pytest.mark.long
@pytest.mark.timeout(1500)
async def test_torchtitan_trains_and_is_measured_checked_and_stored(
    cluster_and_config,
    titan,
    config,
    make_result,
    tmp_path,
):
    cluster, cluster_config = cluster_and_config
    version, python, assets = titan
    workload = f"titan-llama3-{RELEASES[version]}"
    use_debug_model(config / "workloads" / f"{workload}.yaml", version, assets)
    # Nothing is asked of torch's compiler, which takes a minute of two cores.
    uncompiled = {"TORCHDYNAMO_DISABLE": "1"}
    run = planned(workload=workload, gpus="2", max_steps=6, window="2:5", environment=uncompiled)
    here = staged_files(python, ROOT)
    job = await cluster.submit(job_spec(run, here, cluster_config, identity="d/r/c", started=1_700_000_000))
    status = await end_of(cluster, job.name, 1200)
    assert status.state is JobState.SUCCEEDED, Path(job.log_path).read_text()

    log = read_log(job.log_path, max_steps=run.max_steps)
    measured = measure(run, log)
    verdict = validate(run, status, log, measured)
    assert verdict.valid, verdict.reason
    assert (log.format, len(log.steps)) == ("torchtitan", 6)
    assert log.steps[-1].loss < log.steps[0].loss
    # A line is printed some time after its step was timed: on a busy machine the two differ by up to a half.
    assert 1 / 3 < measured.step_time_mean_s / _seconds_by_time_stamps(job.log_path, 2, 5) < 3
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    publish(store, make_result("titan", run=run, log=log, measurement=measured, verdict=verdict))
    [row] = store.results()
    assert (row["workload"], row["gpus"]) == (workload, 2)
    assert row["tokens_per_s"] == pytest.approx(2 * 2 * 128 / measured.step_time_mean_s)


def _seconds_by_time_stamps(path, first, last):
    """Return the mean step time of the steps after `first` up to `last`, by when rank 0 printed them."""
    printed = re.compile(r"\[titan\] (\S+ \S+),(\d{3}) .*step: *(\d+) ")
    times = {}
    for match in printed.finditer(Path(path).read_text()):
        times.setdefault(int(match[3]), datetime.fromisoformat(match[1]).timestamp() + int(match[2]) / 1000)
    return (times[last] - times[first]) / (last - first)


def test_the_file_without_its_launcher_is_refused_before_the_wrong_program_starts(config):
    path = config / "workloads" / FILE
    content = yaml.safe_load(path.read_text())
    del content["launcher"]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match="has another program: choose an image with NeMo"):
        planned(gpu_type="h100", gpus="8")


@pytest.mark.parametrize(
    ("launcher", "sentence"),
    [
        (
            {"command": ["python", "{home}"]},
            "'{home}' has a word that nothing gives: there are {size}, {gpu_type}, {max_steps}, {gpus}",
        ),
        ({"command": ["python", "{gpus.real}"]}, "'{gpus.real}' has a word that nothing gives"),
        ({"command": ["python", "{"]}, "'{' has a word that nothing gives"),
        ({"command": []}, "has to have entries, 1 or more"),
        ({"command": ["x"], "files": {"../x": ""}}, "has to be a plain file name"),
        (
            {"command": ["x"], "files": {"job.sh": ""}},
            "is the name of a file that steptime writes into the job's folder",
        ),
    ],
)
def test_what_a_launcher_cannot_have_is_refused(config, launcher, sentence):
    path = config / "workloads" / FILE
    path.write_text(
        yaml.safe_dump(yaml.safe_load(path.read_text()) | {"launcher": {"kind": "command"} | launcher})
    )
    with pytest.raises(UserError) as refused:
        load_workload("titan-llama3-26.11")
    assert sentence in str(refused.value)


def test_what_only_the_trainer_does_is_refused():
    run = planned(gpus="1").model_copy(update={"mode": Mode.PROFILE})
    with pytest.raises(UserError, match="is trained by its own program, which steptime only times"):
        require_trainable([run])
