"""The operators that check params, plan, stage, submit, and end a training job.

They are thin: each calls functions of steptime. They decide only what concerns Airflow: what may be retried,
and what must be cancelled.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from airflow.sdk import BaseOperator, Context

from steptime.airflow.base import CancelsJobOnKill, RefusingOperator, RunOperator, airflow_errors, task_key
from steptime.airflow.budgets import store_plan
from steptime.airflow.connections import airflow_connection
from steptime.airflow.installation import this_installation
from steptime.airflow.params import plan_from_params
from steptime.airflow.summaries import as_text
from steptime.airflow.xcom import PlanNames, as_json, returned_by
from steptime.clusters.base import Cluster, Job, StagedFiles
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import find_saved_checkpoint, job_environment
from steptime.errors import SystemFailure
from steptime.judging.expected_cost import expected_cost
from steptime.measure.record import describe_code, redact_text
from steptime.measure.repeating import make_request
from steptime.recipes.models import Run
from steptime.recipes.notation import format_hours
from steptime.runs.launch import Attempt, GpuLimitReached, end_open_jobs, launch, make_job_spec
from steptime.runs.patience import retry_while_unreachable
from steptime.staging.stage import stage
from steptime.store.ledger import Ledger, LedgerJob, latest_submitted
from steptime.store.run_models import LedgerPlan, Provenance


def requested_options(context: Context) -> dict[str, Any]:
    """Return the options of the DAG run: its params and the rest of its conf."""
    return {**context["params"], **(context["dag_run"].conf or {})}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class CheckParamsOperator(RefusingOperator):
    """Checks the DAG run's params together, and stores the resulting plan in the job ledger.

    Airflow checks the type of each param. Unknown names, impossible combinations and plans above a budget are
    refused here, before anything is staged or submitted.

    :param workload: the workload of the DAG, such as `llama3.1`.
    """

    ui_color: str = "#eef3e2"

    def __init__(self, *, workload: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.workload = workload

    def execute(self, context: Context) -> dict[str, Any]:
        """Plan the params, store the plan, and reserve its GPU-hours. Returns the `PlanNames` as JSON."""
        options = requested_options(context)
        with self.refusals(context):
            planned = plan_from_params(self.workload, options, owner=self.owner)
            stored = [
                LedgerPlan(run=run, request=make_request(run, options), options=_given(options))
                for run in planned.all_runs
            ]
            cost = expected_cost(planned.all_runs)
        rows = [
            {
                "run": run.label,
                "experiment": run.experiment,
                "TP·PP·CP·DP": "·".join(
                    str(getattr(run.recipe.parallelism, kind))
                    for kind in ("tensor", "pipeline", "context", "data")
                ),
                "micro batch": run.recipe.micro_batch_size,
                "global batch": run.recipe.global_batch_size,
                "steps": f"{run.first_step}-{run.max_steps - 1}",
                "window": str(run.window),
                "limit, s": run.time_limit_s,
            }
            for run in planned.all_runs
        ]
        title = (
            f"{planned.request.workload} on cluster '{planned.request.cluster}' ({planned.cluster_gpu_type})"
        )
        self.log.info("%s", as_text(rows, title=title))
        self.log.info("at most %s GPU-hours", format_hours(planned.gpu_hours_max))
        self.log.info("%s", cost.sentence)
        with self.refusals(context):
            store_plan(self, context, stored)
        return as_json(PlanNames.of(planned))


class StageTrainingOperator(BaseOperator):
    """Stages what the runs of a plan need on the cluster: the trainer's code, and an environment or image.

    :param plan: what `CheckParamsOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("plan",)
    ui_color: str = "#e2eef3"

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage what the plan's runs need. Returns the `StagedFiles` as JSON."""
        first = PlanNames.model_validate(returned_by("check_params", self.plan)).runs[0]
        with airflow_errors():
            planned = asyncio.run(Ledger(self.log.warning).planned_run(task_key(context), first))
        return as_json(stage_for(planned.run, self))


def stage_for(run: Run, task: BaseOperator) -> StagedFiles:
    """Stage what a run needs on its cluster, and log it."""
    log = task.log
    with airflow_errors(), _folded(log.info) as report:
        config = load_cluster(run.cluster)
        staged = asyncio.run(
            retry_while_unreachable(
                config,
                airflow_connection,
                lambda cluster: stage(cluster, config, run, report),
                log.warning,
                lambda: Ledger(log.warning).was_reached(run.cluster),
            )
        )
    log.info("the trainer: %s", staged.trainer_path)
    if staged.image is None:
        log.info("its interpreter: %s", staged.python)
    else:
        log.info("its image: %s", staged.image_path)
        if staged.image_sha256 is not None:
            log.info("the SHA-256 of the image's file: %s", staged.image_sha256)
    return staged


@contextmanager
def _folded(info: Callable[..., None]) -> Iterator[Callable[[str], None]]:
    """Return a function that logs lines, all in one collapsible group: pip may print hundreds of them."""
    begun = False

    def report(line: str) -> None:
        nonlocal begun
        if not begun:
            info("::group::Output of staging")
            begun = True
        info("%s", line)

    try:
        yield report
    finally:
        if begun:
            info("::endgroup::")


class SubmitTrainingOperator(CancelsJobOnKill):
    """Submits the job of a run, or finds the one that an earlier try of this task submitted.

    A retry after a killed worker finds the same job. If the task is cleared, it ends that job and submits a
    new one. Returns `{"cluster": …, "job": …}`.

    :param run: the name of the run, whose plan is in the job ledger. (templated)
    :param staged: what `StageTrainingOperator` returned. (templated)
    :param saved_in: if the run loads a checkpoint, the task group of the job that saved it.
    """

    template_fields: Sequence[str] = ("run", "staged")
    ui_color: str = "#d9e7f5"

    def __init__(
        self,
        *,
        run: Any,
        staged: Any,
        saved_in: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.staged = staged
        self.saved_in = saved_in

    @property
    def cell(self) -> str:
        """The run's name, for the template that names the mapped task."""
        return str(self.run)

    def execute(self, context: Context) -> Any:
        """Submit the job. Returns its handle: `{"cluster": …, "job": …}`."""
        with airflow_errors():
            attempt = self._attempt(context)
            config = load_cluster(attempt.run.cluster)
            saved = None if self.saved_in is None else self._saving_job(context, self.saved_in)

            async def submit(cluster: Cluster) -> LedgerJob:
                wanted = attempt
                if saved is not None:
                    checkpoint = {"checkpoint_path": await find_saved_checkpoint(cluster, saved)}
                    wanted = replace(attempt, run=attempt.run.model_copy(update=checkpoint))
                return await launch(cluster, config, wanted, self.ledger, self.reporter(context))

            try:
                job = asyncio.run(self.submit_with_retries(config, submit))
            except GpuLimitReached as full:
                self.wait_for_gpus(full)
            script = make_job_spec(job, config).script
        self.log.info("job %s (id %s) on cluster '%s'", job.name, job.job_id, job.cluster)
        self.log.info("its log: %s", job.log_path)
        secretive = (job.run.environment, job.provenance.staged.image_environment)
        self.log.info("its script:\n%s", redact_text(script, *secretive))
        return {"cluster": job.cluster, "job": job.name}

    def _saving_job(self, context: Context, task_group: str) -> Job:
        jobs = asyncio.run(self.ledger.jobs_of_task(task_key(context, task_group)))
        saving = latest_submitted(jobs)
        if saving is None or saving.job is None:
            raise SystemFailure(
                f"task group '{task_group}' has submitted no job to save the checkpoint that this run loads"
            )
        return saving.job

    def _attempt(self, context: Context) -> Attempt:
        staged = StagedFiles.model_validate(returned_by("stage", self.staged))
        installation = this_installation()  # before the key, which has its id
        key = task_key(context)
        planned = asyncio.run(self.ledger.planned_run(key, self.run))
        return Attempt(
            task_key=key,
            installation=installation,
            run_after=context["dag_run"].run_after.timestamp(),
            max_tries=context["ti"].max_tries,
            run=planned.run,
            request=planned.request,
            provenance=Provenance(
                **describe_code(),
                staged=staged,
                options=planned.options,
                environment=job_environment(planned.run, staged, load_cluster(planned.run.cluster)),
                dag_id=key.dag_id,
                dag_run_id=key.dag_run_id,
                task_id=f"{key.task_group}.wait",
                map_index=key.map_index,
                sweep=planned.sweep,
            ),
        )


class EndTrainingOperator(RunOperator):
    """Ends the jobs of a run that no task waits for any more; a teardown, so that it always runs.

    `on_kill` cancels a job immediately, but Airflow does not call it when a deferred task times out, when no
    triggerer is running, or between two tasks. A job that the task `wait` gave up on, because the cluster was
    out of reach, is not ended.
    """

    ui_color: str = "#eeeeee"

    def execute(self, context: Context) -> None:
        """Cancel the live jobs of the run."""
        with airflow_errors():
            jobs = asyncio.run(self.ledger.jobs_of_task(task_key(context)))
            if jobs:
                self._run = jobs[-1].run
            still_open = [job for job in jobs if job.ended_at is None]
            for job in still_open:
                config = load_cluster(job.cluster)
                if job.abandoned:
                    self.log.warning(
                        "job %s is not ended, because it may still train: 'wait' lost its cluster. Clear "
                        "'wait' to wait for the job again, or end it by hand: %s",
                        job.name,
                        config.ending_by_hand(job.name),
                    )
                    continue
                work = partial(
                    end_open_jobs,
                    jobs=[job],
                    ledger=self.ledger,
                    info=self.log.info,
                    warn=self.log.warning,
                )
                asyncio.run(retry_while_unreachable(config, airflow_connection, work, self.log.warning))
