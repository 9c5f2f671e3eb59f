"""The operators up to a training job's end: check params and plan, stage, submit, end.

They are thin: each calls functions of steptime with models that travel through XCom as JSON. They decide only
what concerns Airflow: which attempt this is, what may be retried, and what must be cancelled.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseOperator, Context

from steptime.airflow.attempts import current_attempt, named_after, specs_of
from steptime.airflow.base import (
    HoldsJob,
    RefusingOperator,
    RunOperator,
    airflow_errors,
    as_json,
    dag_run_of,
    end_job,
    last_submitted,
    left_job,
)
from steptime.airflow.budgets import commit_plan, settle_ended
from steptime.airflow.connections import patiently
from steptime.airflow.params import plan_from_params
from steptime.airflow.sentences import as_text
from steptime.airflow.states import state_of
from steptime.clusters.base import Cluster, JobState, Staged
from steptime.clusters.config import ClusterConfig, load_cluster
from steptime.errors import SystemFailure
from steptime.recipes.models import Run
from steptime.recipes.notation import format_hours
from steptime.recipes.planning import Plan
from steptime.recipes.sweep_planning import Cell
from steptime.results.models import Provenance, Submitted
from steptime.results.repeating import request_of

_WILL_WAIT = (None, "restarting")
"""States of a waiting task that has not begun or was cleared; `restarting` while its worker is ended."""


def options_of(context: Context) -> dict[str, Any]:
    """Return what the DAG run was asked for: its params, and the rest of its conf."""
    return {**context["params"], **(context["dag_run"].conf or {})}


class CheckParamsOperator(RefusingOperator):
    """Checks the DAG run's params together, and returns the `Plan` they come to.

    Airflow checks each param's type; unknown names and values that do not go together are refused here,
    before anything is staged or submitted. So is a plan that a budget of its cluster does not allow.

    :param workload: the workload that the DAG is about, `llama3.1`.
    """

    ui_color: str = "#eef3e2"

    def __init__(self, *, workload: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.workload = workload

    def execute(self, context: Context) -> dict[str, Any]:
        """Check and plan. Returns the `Plan` as JSON."""
        from steptime.judging.expected_cost import expected_cost

        with self.refusals(context):
            planned = plan_from_params(self.workload, options_of(context))
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
        me = dag_run_of(context)
        with self.refusals(context):
            commit_plan({me: planned.all_runs}, held_by=me, info=self.log.info)
        return as_json(planned)


class StageTrainingOperator(BaseOperator):
    """Prepares on the cluster what the runs of a plan need: the trainer's code, its environment or image.

    :param plan: what `CheckParamsOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("plan",)
    ui_color: str = "#e2eef3"

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Stage. Returns `Staged` as JSON."""
        return as_json(stage_for(Plan.model_validate(self.plan).runs[0], self))


def stage_for(run: Run, task: BaseOperator) -> Staged:
    """Stage what a run needs on its cluster, and log what that is."""
    from steptime.runs.ledger import was_reached
    from steptime.staging.stage import stage

    log = task.log
    with airflow_errors(), _folded(log.info) as report:
        config = load_cluster(run.cluster)
        staged = asyncio.run(
            patiently(
                config,
                lambda cluster: stage(cluster, config, run, report),
                log.warning,
                lambda: was_reached(run.cluster),
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
    """Log lines in a group that people can unfold: pip's, hundreds the first time."""
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


class SubmitTrainingOperator(RunOperator, HoldsJob):
    """Submits the job of a run, or finds the one that an earlier try of this task submitted.

    A retry after a killed worker comes to the same job; a cleared task begins a new attempt, and the job of
    the attempt before is ended. If only this task was cleared, as the setup of another mapped instance, it
    asks nothing of the cluster and hands on what was submitted before.

    :param run: the planned run, a `Run` as JSON. (templated)
    :param staged: what `StageTrainingOperator` returned. (templated)
    :param waited_in: id of the task that waits for the job: nothing is submitted unless it is yet to begin.
    :param saved_in: for a checkpoint load, id of the task that waited for the job which saved it.
    :param sweep_cell: in a sweep, the run's `Cell` as JSON; otherwise the DAG run's params are what was asked
        for. (templated)
    """

    template_fields: Sequence[str] = ("run", "staged", "sweep_cell")
    ui_color: str = "#d9e7f5"

    def __init__(
        self,
        *,
        run: Any,
        staged: Any,
        waited_in: str,
        saved_in: str | None = None,
        sweep_cell: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.sweep_cell = sweep_cell
        self.staged = staged
        self.saved_in = saved_in
        self.waited_in = waited_in
        self._attempt: int | None = None

    def planned_run(self) -> Run:
        """Return the run to submit."""
        return Run.model_validate(self.run)

    def execute(self, context: Context) -> dict[str, Any]:
        """Submit. Returns the `Submitted` as JSON."""
        with airflow_errors():
            ti = context["ti"]
            state = state_of(ti, self.waited_in)
            if state not in _WILL_WAIT:
                return as_json(self._submitted_before(context, state))
            run = self.planned_run()
            config = load_cluster(run.cluster)
            submitted = asyncio.run(
                self.submit_patiently(config, lambda cluster: self._submit(cluster, config, context), run)
            )
        return as_json(submitted)

    async def _submit(self, cluster: Cluster, config: ClusterConfig, context: Context) -> Submitted:
        from steptime.clusters.jobscript import find_saved_checkpoint, job_environment
        from steptime.results.record import of_this_code, redacted_text

        ti, run = context["ti"], self.planned_run()
        staged = Staged.model_validate(self.staged)

        if self.saved_in is not None:
            saving = last_submitted(context, self.saved_in)
            if saving is None:
                raise SystemFailure(f"'{self.saved_in}' has left no job whose checkpoint could be loaded")
            run = run.model_copy(update={"checkpoint_path": await find_saved_checkpoint(cluster, saving.job)})
        store = context["task_state_store"]
        spec_of = specs_of(run, staged, config, context, await named_after(store))
        if self._attempt is None:  # else this task submits again after a pause
            self._attempt = await current_attempt(
                cluster,
                store,
                ti.max_tries,
                spec_of,
                left=lambda: left_job(context, self.waited_in),
                info=self.log.info,
            )
        attempt = self._attempt
        spec = spec_of(attempt)
        cell = None if self.sweep_cell is None else Cell.model_validate(self.sweep_cell)
        asked_for = options_of(context) if cell is None else cell.request.model_dump(mode="json")
        request = request_of(run, asked_for)  # what it refuses is refused before anything runs
        job = await self.submit_held(cluster, run, spec, context)
        self.log.info("job %s (id %s) on cluster '%s'", job.name, job.job_id, job.cluster)
        self.log.info("its log: %s", job.log_path)
        secretive = (run.environment, staged.image_environment)
        self.log.info("its script:\n%s", redacted_text(spec.script, *secretive))
        made_by = Provenance(
            **of_this_code(),
            staged=staged,
            options={name: value for name, value in asked_for.items() if value is not None},
            environment=job_environment(run, staged, config),
            dag_id=ti.dag_id,
            dag_run_id=ti.run_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            sweep=None if cell is None else cell.sweep,
            sweep_run=None if cell is None else dag_run_of(context),
        )
        return Submitted(run=run, request=request, job=job, attempt=attempt, made_by=made_by)

    def _submitted_before(self, context: Context, state: str | None) -> Submitted:
        """What the waiting task has waited for last: only this task was cleared."""
        submitted = last_submitted(context, self.waited_in)
        if submitted is None:
            raise SystemFailure(
                f"'{self.waited_in}' is {state} and has left no job, and none is submitted that nobody would "
                "wait for: clear that task, and this one is cleared with it"
            )
        self.log.info("'%s' was not cleared: its job stays %s", self.waited_in, submitted.job.name)
        return submitted


class EndTrainingOperator(RunOperator):
    """Ends the jobs of a run that nobody waits for any more; as a teardown, it runs whatever happened.

    `on_kill` cancels at once if Airflow calls it. It does not when a deferred task times out, when no
    triggerer is up, or between two tasks.

    A wait that was given up because the cluster was out of reach is no reason to end anything, nor is one
    that has used up its tries: see `LEFT_KEY`.

    :param submitted: what `SubmitTrainingOperator` returned. (templated)
    :param waited_in: id of the task that waited for the jobs.
    """

    template_fields: Sequence[str] = ("submitted",)
    ui_color: str = "#eeeeee"

    def __init__(self, *, submitted: Any, waited_in: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.submitted = submitted
        self.waited_in = waited_in

    def planned_run(self) -> Run:
        """Return the run whose jobs are ended."""
        return Submitted.model_validate(self.submitted).run

    def execute(self, context: Context) -> None:
        """End what lives of the job and of its resubmissions."""
        with airflow_errors():
            config = load_cluster(Submitted.model_validate(self.submitted).job.cluster)
            if (left := left_job(context, self.waited_in)) is not None:
                self.log.warning(
                    "%s gave up a job that may be sound, out of reach or with its last worker, so nothing is "
                    "ended: clear that task and it goes on with job %s, or end it by hand: %s",
                    self.waited_in,
                    left,
                    config.ending_by_hand(left),
                )
                return
            asyncio.run(
                patiently(config, lambda cluster: self._end(cluster, config, context), self.log.warning)
            )

    async def _end(self, cluster: Cluster, config: ClusterConfig, context: Context) -> None:
        submitted = Submitted.model_validate(self.submitted)
        whose = submitted.job.installation
        spec_of = specs_of(submitted.run, submitted.made_by.staged, config, context, whose)
        first = submitted.attempt
        names = [spec_of(number).name for number in range(first, first + 1 + config.resubmissions)]
        for name, status in (await cluster.poll(names)).items():
            if status.state.is_live and (job := await cluster.find(name)) is not None:
                self.log.warning("job %s is %s and nobody waits for it: ending it", name, status.state)
                ended = await end_job(cluster, job)
                self.log.info("job %s: %s", name, ended.state)
            elif name == submitted.job.name or status.state is not JobState.UNKNOWN:
                self.log.info("job %s: %s", name, status.state)
        await settle_ended(cluster)
