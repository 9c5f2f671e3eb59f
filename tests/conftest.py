"""Fixtures for tests of several packages: a whole, real result to start from, and the trainer's Python."""

import asyncio
import configparser
import gc
import os
import random

import drawn_machine
import pytest
from called import captured
from half_year import half_years
from hypothesis import settings
from local_home import config_folder
from sixty_cells import sixty_cells
from slurm_service import mini_slurm, slurm_of_session
from sqlalchemy import event
from sqlalchemy.engine import Engine
from stored import CheckedResult
from unchanged_process import unchanged_process

from steptime.clusters.base import Job, JobState, JobStatus, StagedFiles
from steptime.logs.training_log import CheckpointTiming, Step, TrainingLog
from steptime.measure.metrics import measure
from steptime.measure.record import make_record
from steptime.recipes.models import Mode, ModelShape, Parallelism, Recipe, Run, Window
from steptime.recipes.request import PlanRequest
from steptime.service.standalone_config import write_config
from steptime.store.run_models import Check, Provenance, Submission, Verdict

# A fixture of the session that two conftests imported would be made twice.
__all__ = [  # fixtures
    "config_folder",
    "half_years",
    "mini_slurm",
    "sixty_cells",
    "slurm_of_session",
    "unchanged_process",
]

_MACHINE = drawn_machine.enter()

_GROUPS = (
    *(("airflow",), ("site",), ("warm_trainer", "warm_bridge"), ("slurm",), ("airflow_database",)),
    *(("half_years",), ("sixty_cells",), ("store_url",)),
)
"""Fixtures and markers of expensive services whose tests are one group, the slowest first."""
_WHOLE_PROGRAMS = {"service", "slow", "trainer", "browser"}
"""Markers of tests that start before the short ones, so that no worker ends long after the others."""


def pytest_report_header():
    """Name the machine that was drawn for these tests."""
    return _MACHINE


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from going through all modules and tests, which stay, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Put tests into the seed's order, and group files that share an expensive service for `loadgroup`.

    These groups start first, each folder by folder, as fixtures of a package are made again when a test of
    another comes between. All other files are a group each, so that their module fixtures are made once.
    """
    items[:] = drawn_machine.shuffled(items)
    places = {}
    for item in items:
        if "not exhaustive" in config.option.markexpr and item.get_closest_marker("exhaustive"):
            continue  # it will not run, and what it needs is not started
        place = _place(item)
        places[item.path] = min(place, places.get(item.path, place))
    alone = len(_GROUPS)

    def order(item):
        place = places.get(item.path, alone)
        return place, str(item.path.parent) if place < alone else ""

    items.sort(key=order)
    for item in items:
        place = places.get(item.path, alone)
        group = _GROUPS[place][0] if place < alone else item.location[0]
        item.add_marker(pytest.mark.xdist_group(group))


def _place(item):
    """Return the index of a test's group, or a later one: first whole programs, then the short tests."""
    needs = {*getattr(item, "fixturenames", ()), *(mark.name for mark in item.iter_markers())}
    for place, names in enumerate(_GROUPS):
        if not needs.isdisjoint(names):
            return place
    return len(_GROUPS) if needs & _WHOLE_PROGRAMS else len(_GROUPS) + 1


_SUBMITTED = 1_790_000_000.0

# Other processes may keep the cores busy: how long one example takes says nothing.
settings.register_profile("steptime", deadline=None)
settings.load_profile("steptime")


@pytest.fixture(scope="session")
def bwrap():
    """Skip where the kernel lets bwrap make no container, as within most containers of Docker."""
    done = captured(["bwrap", "--ro-bind", "/", "/", "true"])
    if "namespace" in done.stderr:
        pytest.skip(f"bwrap cannot make a container on this machine: {done.stderr.strip()}")


@pytest.fixture(scope="session")
def trainer_python():
    """Return the interpreter of the trainer's environment: the one given, else one staged as for a job."""
    return os.environ.get("STEPTIME_TRAINER_PYTHON") or _staged_python("nemo")


@pytest.fixture(scope="session")
def bridge_python():
    """Return the interpreter of the trainer's environment for Megatron-Bridge, staged as for a job."""
    return os.environ.get("STEPTIME_BRIDGE_PYTHON") or _staged_python("megatron_bridge")


def _staged_python(backend):
    from steptime.clusters.config import load_cluster, open_cluster
    from steptime.recipes.planning import PlanRequest, plan
    from steptime.staging.stage import stage

    config, run = load_cluster("local"), plan(PlanRequest(workload="llama3.1", gpus="1")).runs[0]
    run = run.model_copy(update={"recipe": run.recipe.model_copy(update={"backend": backend})})
    staged = asyncio.run(stage(open_cluster(config), config, run, print))
    assert staged.python is not None
    return staged.python


@pytest.fixture(scope="session")
def make_result():
    """Return a function that builds the result of a finished run of a tiny Llama; see `_result`."""
    return _result


@pytest.fixture
def airflow_cfg(tmp_path, monkeypatch):
    """Return the `airflow.cfg` that `steptime up` writes, in a state folder of the test's own."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    config = configparser.ConfigParser()
    config.read(write_config(8080))
    return config


@pytest.fixture
def statements():
    """Yield the SQL statements that this process executes from now on, with their values."""
    executed = []

    def note(_connection, _cursor, statement, parameters, *_):
        executed.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    yield executed
    event.remove(Engine, "before_cursor_execute", note)


def _result(
    job_name="pretrain_llama3.1_tiny_fp32_2-1a2b3c4d",
    *,
    size="tiny",
    gpus=2,
    tensor=1,
    mode=Mode.PERFORMANCE,
    max_steps=20,
    step_times=None,
    dag_run_id="manual__2026-11-21",
    map_index=0,
    submitted_at=_SUBMITTED,
    environment=None,
    script="#!/bin/bash\ntorchrun -m trainer --run run.json\n",
    verdict=None,
    **replaced,
):
    """Return a result as the pipeline would make it.

    Fields of `CheckedResult` and `Submission` (log, run, …) in `replaced` are set last and win. Unless the
    record is replaced too, it is made from all of these. Steps run to `max_steps` and the window is the last
    half. A checkpoint load trains one step.
    """
    gbs = 8 * gpus
    first_step = max_steps - 1 if mode is Mode.CHECKPOINT_LOAD else 0
    run = Run(
        experiment=f"pretrain_llama3.1_{size}_fp32_{gpus}",
        recipe=Recipe(
            workload="llama3.1-25.04",
            size=size,
            dtype="fp32",
            gpu_type="cpu",
            scaling="weak",
            proxy=False,
            model=ModelShape(
                architecture="llama",
                num_layers=2,
                hidden_size=256,
                ffn_hidden_size=768,
                num_attention_heads=8,
                num_query_groups=4,
                vocab_size=4096,
                seq_length=128,
            ),
            parallelism=Parallelism(tensor=tensor, data=gpus // tensor),
            micro_batch_size=1,
            global_batch_size=gbs,
            gpus_per_node=gpus,
            image=None,
            flops_formula="llama3.1-25.04",
        ),
        mode=mode,
        first_step=first_step,
        max_steps=max_steps,
        window=Window(first=max(first_step, max_steps // 2), last=max_steps - 1),
        time_limit_s=600,
        cluster="local",
        environment=environment or {},
    )
    noise = random.Random(job_name)  # noqa: S311 - step times, not secrets
    numbers = range(first_step, max_steps)
    times = step_times or [round(0.2 * gpus * noise.uniform(0.99, 1.01), 4) for _ in numbers]
    log = TrainingLog(
        path=f"/experiments/{job_name}/log-{run.experiment}.out",
        format="nemo2",
        bytes_read=8192,
        steps=tuple(
            Step(
                global_step=number,
                step_time_s=time,
                loss=8.4 - 0.01 * number,
                global_batch_size=gbs,
                consumed_samples=None if number == 0 else (number + 1) * gbs,
                peak_memory_bytes=80 * 2**30,
            )
            for number, time in zip(numbers, times, strict=True)
        ),
        checkpoints=_CHECKPOINTS.get(mode, lambda _: ())(max_steps),
        started={
            "schema": 1,
            "world_size": gpus,
            "tensor_parallel": tensor,
            "pipeline_parallel": 1,
            "context_parallel": 1,
            "data_parallel": gpus // tensor,
            "expert_parallel": 1,
            "micro_batch_size": 1,
            "global_batch_size": gbs,
            "seq_length": 128,
            "num_layers": 2,
            "versions": {"nemo": "2.7.3", "megatron_core": "0.15.3", "torch": "2.13.0", "python": "3.11.7"},
        },
        resumed={
            "checkpoint_path": "/experiments/saved/checkpoints/default",
            "global_step": first_step,
            "consumed_samples": first_step * gbs,
        }
        if mode is Mode.CHECKPOINT_LOAD
        else None,
        ended={"state": "completed", "global_step": max_steps - 1, "steps_trained": len(numbers)},
    )
    provenance = Provenance(
        steptime_version="0.1.0",
        git_commit="675de01b859eae371bc01bf59b001889438a7a12",
        git_clean=True,
        staged=StagedFiles(
            python="/venv/bin/python",
            venv_lock_sha256="a" * 64,
            trainer_path="/staged/trainer",
            trainer_sha256="b" * 64,
        ),
        options={"size": size, "gpus": str(gpus), "environment": environment or {}},
        environment={"OMP_NUM_THREADS": "1", **(environment or {}), "PYTHONPATH": "/staged/trainer"},
        script=script,
        dag_id="steptime_llama3.1-25.04",
        dag_run_id=dag_run_id,
        task_id="wait",
        map_index=map_index,
    )
    submitted = Submission(
        run=run,
        request=PlanRequest(workload="llama3.1", size=size, gpus=str(gpus), gpu_type="cpu"),
        job=Job(
            cluster="local",
            name=job_name,
            job_id=job_name,
            directory=f"/experiments/{job_name}",
            log_path=log.path,
            submitted_at=submitted_at,
        ),
        attempt=1,
        provenance=provenance,
    )
    parts = {name: replaced.pop(name) for name in Submission.model_fields if name in replaced}
    result = CheckedResult(
        submitted=submitted.model_copy(update=parts),
        status=JobStatus(
            state=JobState.SUCCEEDED,
            exit_code=0,
            started_at=submitted_at + 1.5,
            ended_at=submitted_at + 40,
            nodes=("localhost",),
        ),
        log=log,
        measurement=measure(run, log),
        verdict=verdict or Verdict(checks=(Check(name="job_succeeded", passed=True, message="It did."),)),
        record="",
    )
    made = result.model_copy(update=replaced)
    record = made.record or make_record(made.submitted, made.status, made.log)
    return made.model_copy(update={"record": record})


_CHECKPOINTS = {
    Mode.CHECKPOINT_SAVE: lambda max_steps: (
        CheckpointTiming(
            kind="save",
            iteration=max_steps - 1,
            started_at=_SUBMITTED + 30,
            duration_s=0.946,
            blocked_s=0.146,
            asynchronous=True,
        ),
    ),
    Mode.CHECKPOINT_LOAD: lambda _: (
        CheckpointTiming(
            kind="load", iteration=None, started_at=_SUBMITTED + 20, duration_s=0.187, blocked_s=0.187
        ),
    ),
}
