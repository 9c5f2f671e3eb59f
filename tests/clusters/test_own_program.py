"""A user's own program, torchtitan's Llama 3 from one YAML file: from the plan to the store."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from named_runs import IN_IMAGE
from printed_tables import config_with
from staged import staged_files
from stored import publish

from steptime.clusters.base import Cluster, JobState
from steptime.clusters.jobscript import job_spec
from steptime.errors import UserError
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.models import Mode, Run
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import load_workload
from steptime.staging.checking import require_trainable
from steptime.store.run_queries import Store

from .conftest import MakeLocalConfig, end_of

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "stand_ins" / "torchtitan"
TITAN = ROOT / "tests" / "data" / "torchtitan"
FILE = "titan-llama3-25.12.yaml"


@pytest.fixture(autouse=True)
def config(config_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the shipped config with torchtitan's file in it."""
    folder = config_with(TITAN, config_folder)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder))
    return folder


def planned(**asked: Any) -> Run:
    made = plan(PlanRequest(workload="titan-llama3", **asked))
    require_trainable(made.all_runs)
    return made.runs[0]


def test_a_script_for_gpus_starts_the_program_on_each_rank(make_config: MakeLocalConfig) -> None:
    run = planned(gpu_type="h100", gpus="64")
    config = make_config(container="bwrap", gpu_type="h100")
    spec = job_spec(run, IN_IMAGE, config, identity="d/r/c", started=1_700_000_000)
    assert "--nproc-per-node=64 -m trainer.command python -m torchtitan.train" in spec.script
    assert "--training.steps=50" in spec.script
    assert "--parallelism.data_parallel_shard_degree=32" in spec.script
    assert 'flavor = "8B"' in spec.files["llama3_8b.toml"]
    assert run.model_flops is not None


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def place(request: pytest.FixtureRequest) -> tuple[Cluster, Any]:
    """Return a cluster and its configuration."""
    make = "make_slurm_config" if request.param == "slurm" else "make_config"
    return request.getfixturevalue(request.param), request.getfixturevalue(make)()


@pytest.mark.long
async def test_it_runs_and_is_measured_checked_and_stored(
    place: tuple[Cluster, Any], make_result: Any, tmp_path: Path
) -> None:
    cluster, config = place
    run = planned(gpus="2")
    here = staged_files(sys.executable, f"{ROOT}:{STAND_IN}")
    job = await cluster.submit(job_spec(run, here, config, identity="d/r/c", started=1_700_000_000))
    status = await end_of(cluster, job.name)
    assert status.state is JobState.SUCCEEDED, Path(job.log_path).read_text()

    log = read_log(job.log_path, max_steps=run.max_steps)
    measured = measure(run, log)
    verdict = validate(run, status, log, measured)
    assert (log.format, measured.step_time_mean_s, len(log.steps)) == ("torchtitan", 0.5, 50)
    assert verdict.valid, verdict.reason
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    publish(store, make_result("titan", run=run, log=log, measurement=measured, verdict=verdict))
    [row] = store.results()
    assert (row["workload"], row["gpus"], row["tokens_per_s"]) == ("titan-llama3-25.12", 2, 2 * 4 * 128 / 0.5)


def test_the_file_without_its_launcher_is_refused_before_the_wrong_program_starts(config: Path) -> None:
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
def test_what_a_launcher_cannot_have_is_refused(
    config: Path, launcher: dict[str, Any], sentence: str
) -> None:
    path = config / "workloads" / FILE
    path.write_text(
        yaml.safe_dump(yaml.safe_load(path.read_text()) | {"launcher": {"kind": "command"} | launcher})
    )
    with pytest.raises(UserError) as refused:
        load_workload("titan-llama3-25.12")
    assert sentence in str(refused.value)


def test_what_only_the_trainer_does_is_refused() -> None:
    run = planned(gpus="1").model_copy(update={"mode": Mode.PROFILE})
    with pytest.raises(UserError, match="is trained by its own program, which steptime only times"):
        require_trainable([run])
