"""Job scripts: a golden copy, checks by bash and shellcheck, and values that try to be code."""

import json
from pathlib import Path

import pytest
from staged import staged_files

from steptime.clusters.base import Job
from steptime.clusters.jobscript import find_saved_checkpoint, job_spec, saved_checkpoint_dir
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SystemFailure, UserError
from steptime.recipes.models import Run

from .conftest import end_of

GOLDEN = Path(__file__).parent / "golden" / "local.sh"

STAGED = staged_files(
    "/state/venvs/trainer-0123456789abcdef/bin/python",
    "/state/trainer/fedcba9876543210",
    venv_lock_sha256="a" * 64,
)

HOSTILE = ["$(touch {canary})", '"; touch {canary}; "', "x\ntouch {canary}\n", "a b  c*?[~]!", "", "äöü €"]


@pytest.fixture
def run(make_result):
    """Return a planned run of a tiny Llama on two ranks."""
    return make_result(gpus=2, environment={"OMP_PROC_BIND": "close"}).run


@pytest.fixture
def config(make_config):
    """Return a local cluster whose state is in /state."""
    return make_config(name="local", work_dir="/state")


def spec_of(run, config, **changes):
    return job_spec(
        run, STAGED, config, **{"identity": "llama31/manual/0", "started": 1_790_000_000, **changes}
    )


def test_the_script_is_as_reviewed(run, config):
    """After an intended change, write the new script to the golden file and review the difference."""
    assert spec_of(run, config).script == GOLDEN.read_text()


def test_the_folders_are_those_of_the_recipe_documents(run, config):
    spec = spec_of(run, config)
    name = "pretrain_llama3.1_tiny_fp32_2"
    short = spec.name.split("-")[1]
    assert spec.name == f"{name}-{short}-1"
    assert spec.directory == f"/state/experiments/{name}/{name}_1790000000-{short}/{name}"
    assert spec.log_path == f"{spec.directory}/log-{name}.out"
    assert (spec.slots, spec.time_limit_s) == (2, 600)
    assert Run.model_validate_json(spec.files["run.json"]) == run


def test_the_name_depends_on_who_asks_and_which_attempt_and_on_nothing_else(run, config):
    first = spec_of(run, config)
    assert spec_of(run, config, started=1_790_009_999).name == first.name
    others = [
        spec_of(run, config, attempt=2),
        spec_of(run, config, identity="llama31/manual/1"),
        spec_of(run.model_copy(update={"experiment": "pretrain_llama3.1_tiny_fp32_2_save"}), config),
    ]
    assert len({spec.name for spec in [first, *others]}) == 4
    assert len({spec.directory for spec in [first, *others]}) == 4


def variables(value):
    """Return an environment with the value, or none if the value has several lines, which is not allowed."""
    return {"VALUE": value} if len(value.splitlines()) < 2 else {}


SHOWS_ITS_SURROUNDINGS = """#!/bin/sh
printf '%s\\0' "$VALUE" > value
printf '%s\\0' "$PYTHONPATH" > pythonpath
printf '%s\\0' "$PWD" > folder
printf '%s\\0' "$@" > arguments
"""


@pytest.mark.parametrize("value", HOSTILE)
async def test_hostile_values_arrive_as_they_are_and_run_nothing(run, make_config, tmp_path, value):
    """Values are in the environment, the folder and the paths of interpreter and trainer of a real job."""
    canary = tmp_path / "canary"
    value = value.format(canary=canary)
    root = tmp_path / value.replace("/", "_")
    python = root / "python"
    root.mkdir(exist_ok=True)
    python.write_text(SHOWS_ITS_SURROUNDINGS)
    python.chmod(0o755)
    staged = STAGED.model_copy(update={"python": str(python), "trainer_path": str(root)})
    config = make_config(work_dir=str(root))
    environment = variables(value)
    planned = run.model_copy(update={"environment": environment})
    spec = job_spec(planned, staged, config, identity=value, started=1)
    async with LocalCluster(config) as cluster:
        job = await cluster.submit(spec)
        status = await end_of(cluster, job.name)
        assert status.exit_code == 0, await cluster.read(job.log_path)
    shown = {
        name: (Path(spec.directory) / name).read_bytes().decode().split("\0")[:-1]
        for name in ("value", "pythonpath", "folder", "arguments")
    }
    assert shown["value"] == [environment.get("VALUE", "")]
    assert shown["pythonpath"] == [str(root)]
    assert shown["folder"] == [spec.directory]
    assert shown["arguments"] == ["-m", "trainer.cpu_ranks", "run.json"]
    assert not canary.exists()
    assert json.loads((Path(spec.directory) / "run.json").read_text())["environment"] == environment


@pytest.mark.parametrize("experiment", ["", "../x", "$(touch canary)", "x" * 151])
def test_experiment_names_are_checked(run, config, experiment):
    with pytest.raises(UserError, match=r"experiment name .* cannot be used"):
        spec_of(run.model_copy(update={"experiment": experiment}), config)


# --- the checkpoint that a job saved -----------------------------------------------------------------


@pytest.fixture
def saving_job(tmp_path):
    """Return a job that has ended and whose folder is this test's."""
    directory = str(tmp_path / "saved here")
    return Job(
        cluster="here", name="save", job_id="1", directory=directory, log_path="/log.out", submitted_at=1
    )


CHECKPOINT = "default--None=0.0000-epoch=0-consumed_samples=160.0"


async def test_the_saved_checkpoint_is_the_folder_above_weights(local, saving_job):
    folder = Path(saved_checkpoint_dir(saving_job))
    assert folder == Path(saving_job.directory, "code", "nemo_experiments", "default", "checkpoints")
    (folder / CHECKPOINT / "weights").mkdir(parents=True)
    (folder / CHECKPOINT / "context").mkdir()
    assert await find_saved_checkpoint(local, saving_job) == str(folder / CHECKPOINT)


@pytest.mark.parametrize(
    ("left", "message"),
    [
        ([], "job save left no checkpoint: .*No such file or directory; see /log.out"),
        (["code/nemo_experiments/default/checkpoints"], "job save left 0 checkpoints"),
        (
            [f"code/nemo_experiments/default/checkpoints/{name}/weights" for name in (CHECKPOINT, "another")],
            "job save left 2 checkpoints",
        ),
        (
            [
                f"code/nemo_experiments/default/checkpoints/{name}"
                for name in (f"{CHECKPOINT}/weights", f"{CHECKPOINT}-unfinished")
            ],
            "was not finished; see /log.out",
        ),
    ],
    ids=["nothing", "empty", "two", "unfinished"],
)
async def test_a_checkpoint_that_cannot_be_loaded_is_named(local, saving_job, left, message):
    for path in left:
        (Path(saving_job.directory) / path).mkdir(parents=True)
    with pytest.raises(SystemFailure, match=message):
        await find_saved_checkpoint(local, saving_job)
