"""Results as the pipeline hands them to the store, of a planned run that nothing has trained."""

import random
import time
from collections.abc import Sequence
from typing import Any

from steptime.clusters.base import Job, JobSpec, JobState, JobStatus, Staged
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import job_environment, job_spec
from steptime.logs.models import Step, TrainingLog
from steptime.recipes.models import Run
from steptime.recipes.planning import PlanRequest, plan
from steptime.results.metrics import measure
from steptime.results.models import Check, Provenance, Result, Submitted, Verdict
from steptime.results.provenance import of_this_code
from steptime.results.record import make_record

REQUEST = PlanRequest(workload="llama3.1", gpus="1", cluster="local")
STAGED = Staged(
    python="/srv/steptime/venvs/trainer/bin/python",
    venv_lock_sha256="a" * 64,
    trainer_path="/srv/steptime/trainer",
    trainer_sha256="b" * 64,
)
CHECKS = 12
"""About as many as a run has; their rows are published, too."""
STEP_S, NOISE = 0.2, 0.01


def made_results(names: Sequence[str], steps: int, cluster: str = "local", **recipe: Any) -> list[Result]:
    """A valid result for each job name, of one run with so many steps each.

    It is of another series by its cluster, and by fields of its recipe, where these are given.
    """
    run = plan(REQUEST.model_copy(update={"max_steps": steps})).runs[0]
    changed = {"cluster": cluster, "recipe": run.recipe.model_copy(update=recipe)}
    run = run.model_copy(update=changed)
    config, now = load_cluster("local"), time.time()
    spec = job_spec(run, STAGED, config, identity="benchmark", started=int(now))
    made_by = Provenance(
        **of_this_code(),
        staged=STAGED,
        options=REQUEST.model_dump(exclude_none=True),
        environment=job_environment(run, STAGED, config),
        script=spec.script,
        dag_id="llama31",
        dag_run_id="benchmark",
        task_id="wait",
        map_index=0,
    )
    return [_made_result(name, run, spec, made_by, now) for name in names]


def _made_result(name: str, run: Run, spec: JobSpec, made_by: Provenance, now: float) -> Result:
    """As `parse` and `validate` make it: with the script of the local cluster, and its record."""
    job = Job(
        cluster="local",
        name=name,
        job_id=name,
        directory=spec.directory,
        log_path=spec.log_path,
        submitted_at=now,
    )
    submitted = Submitted(run=run, request=REQUEST, job=job, attempt=1, made_by=made_by)
    status = JobStatus(
        state=JobState.SUCCEEDED, exit_code=0, started_at=now + 1, ended_at=now + 61, nodes=("localhost",)
    )
    log = _log(name, spec.log_path, run)
    return Result(
        submitted=submitted,
        status=status,
        log=log,
        measurement=measure(run, log),
        verdict=Verdict(
            checks=tuple(
                Check(name=f"check_{number}", passed=True, message=f"What check {number} expected is so.")
                for number in range(CHECKS)
            )
        ),
        record=make_record(submitted, status, log),
    )


def _log(name: str, path: str, run: Run) -> TrainingLog:
    dice = random.Random(name)  # noqa: S311 - step times, not secrets
    batch = run.recipe.global_batch_size
    return TrainingLog(
        path=path,
        format="nemo2",
        bytes_read=200 * run.max_steps,
        steps=tuple(
            Step(
                global_step=number,
                step_time_s=STEP_S * dice.gauss(1, NOISE),
                loss=8.4,
                global_batch_size=batch,
                consumed_samples=(number + 1) * batch,
            )
            for number in range(run.max_steps)
        ),
        started={"peak_tflops_per_rank": 0.06, "versions": {"nemo": "2.7.3", "torch": "2.13.0"}},
    )
