"""The operators between a job's log and the metrics store: read, validate, publish, report."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar

from airflow.sdk import BaseOperator, BaseOperatorLink, Context

from steptime.airflow import summaries
from steptime.airflow.assets import extra_of_run, published_results
from steptime.airflow.base import RunOperator, airflow_errors, task_key
from steptime.airflow.budgets import budget_owner
from steptime.airflow.connections import airflow_connection
from steptime.airflow.installation import own_runs
from steptime.airflow.links import ResultsLink
from steptime.airflow.notifications import Event, notify, notify_of_incidents
from steptime.airflow.summaries import as_text
from steptime.airflow.versions import AirflowFailException, AirflowSkipException
from steptime.airflow.xcom import PlanNames, returned_by
from steptime.clusters.base import Cluster, Job, JobState, JobStatus
from steptime.clusters.collecting import collect_log
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import saved_checkpoint_dir
from steptime.errors import OutOfReach, SystemFailure, UserError
from steptime.judging.comparison import finding_of_run
from steptime.judging.judgements import run_writer
from steptime.logs.reader import read_log
from steptime.logs.training_log import TrainingLog
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.measure.record import make_record, with_script
from steptime.recipes.models import Run
from steptime.runs.launch import end_job
from steptime.runs.patience import retry_while_unreachable
from steptime.store.budgets import release
from steptime.store.columns import BY_NAME
from steptime.store.database import wait_for_store
from steptime.store.ledger import TaskKey, latest_submitted
from steptime.store.run_models import Measurement, Result, Submission, Verdict
from steptime.store.run_queries import Store
from steptime.store.run_records import EarlierAttempt, parse_record

FAILURE_KEY = "failure"
"""XCom key of a failed task: the message of its exception."""
_LONGEST = 2000
_REMOVING_S = 3600
"""Most seconds that removing a checkpoint may take."""
Done = TypeVar("Done")


def record_failure(context: Context) -> None:
    """Push the message of a task's exception to XCom; an `on_failure_callback`.

    Airflow also calls it in the DAG processor for a task that was lost with its worker: there is no exception
    then, and nothing is pushed.
    """
    error = context.get("exception")
    if isinstance(error, BaseException):
        context["ti"].xcom_push(FAILURE_KEY, str(error)[:_LONGEST])


def with_store(task: BaseOperator, cluster: str, work: Callable[[], Done]) -> Done:
    """Call `work`, which must be idempotent, and return its result; retry while the store is unavailable.

    It is retried for as many hours as the cluster's file has in `patience_h`.
    """
    return wait_for_store(work, task.log.warning, load_cluster(cluster).patience_h * 3600)


class ReadLogOperator(RunOperator):
    """Reads the training log of an ended job, successful or not, and stores the measured run.

    Skipped if the store has no submitted job of this mapped task instance, or if the task `wait` gave up on
    the job, which may still run.
    """

    ui_color: str = "#eef3e2"

    def execute(self, context: Context) -> dict[str, str]:
        """Read the job's log, measure the run, and store both. Returns the job's handle."""
        jobs = asyncio.run(self.ledger.jobs_of_task(task_key(context)))
        job = latest_submitted(jobs)
        if job is None or (submitted := job.submitted) is None:
            raise AirflowSkipException("no job was submitted: there is no log to read")
        if jobs[-1].abandoned:
            raise AirflowSkipException(
                f"'wait' stopped waiting for job '{jobs[-1].name}', which may still run: its log is not read"
            )
        self._run = run = submitted.run
        earlier = [other.job for other in jobs if other.job is not None and other.attempt < job.attempt]
        with airflow_errors():
            config = load_cluster(submitted.job.cluster)
            status, log, record = asyncio.run(
                retry_while_unreachable(
                    config,
                    airflow_connection,
                    lambda cluster: self._read(cluster, submitted, earlier),
                    self.log.warning,
                )
            )
        measurement: Measurement | None = None
        unmeasured = ""
        try:
            measurement = measure(run, log)
        except UserError as error:
            unmeasured = str(error)
        self.log.info("%s", summaries.summarize_log(run, log, measurement))
        if measurement is None:
            self.log.warning("nothing can be measured: %s", unmeasured)
        else:
            self.log.info("%s", as_text(_numbers(measurement), title=f"steps {measurement.window}"))
        self.log.info("read %d bytes of %s (log format: %s)", log.bytes_read, log.path, log.format)
        for problem in log.problems:
            self.log.warning("%s: %s", problem.kind, problem.message)
        result = Result(submitted=submitted, status=status, measurement=measurement, log=log, record=record)
        with airflow_errors():
            with_store(self, config.name, lambda: run_writer(Store()).store_measurement(result))
        return {"cluster": submitted.job.cluster, "job": submitted.job.name}

    async def _read(
        self, cluster: Cluster, submitted: Submission, earlier: Sequence[Job]
    ) -> tuple[JobStatus, TrainingLog, str]:
        """Return how the job ended, its parsed log, and the record needed to repeat the run, as JSON.

        A job that is still running is ended first, because nothing waits for it any more.
        """
        run, job = submitted.run, submitted.job
        statuses = await cluster.poll([job.name, *(other.name for other in earlier)])
        status = statuses[job.name]
        if status.state.is_live:
            # Waiting was given up (failed by hand, timed out): only a log that grows no more can be read.
            status = await end_job(cluster, job.name, self.ledger)
        if status.state is JobState.UNKNOWN:  # clusters forget their jobs
            status = await asyncio.to_thread(self._stored_status, job, status)
        try:
            path = await collect_log(cluster, job)
        except SystemFailure as failure:  # a file system that hangs is as far away as a login node
            raise OutOfReach(str(failure)) from None
        log = await asyncio.to_thread(
            read_log,
            path,
            max_steps=run.max_steps,
            first_step=run.first_step,
            gpu_type=run.recipe.gpu_type,
            step_line=run.recipe.step_line,
        )
        log = log.model_copy(update={"path": job.log_path})
        attempts = tuple(EarlierAttempt(job=other, status=statuses[other.name]) for other in earlier)
        return status, log, make_record(await with_script(cluster, submitted), status, log, attempts)

    def _stored_status(self, job: Job, otherwise: JobStatus) -> JobStatus:
        """Return the job's status as stored; `otherwise` if its log was never stored."""
        stored = with_store(self, job.cluster, lambda: Store().find(job.name))
        return stored.status if stored is not None and stored.job == job else otherwise


def _numbers(measurement: Measurement) -> list[dict[str, Any]]:
    """Return a table row for each measured number."""
    values = measurement.model_dump(mode="json", exclude={"window"}, exclude_none=True)
    return [{"what": name, "value": value} for name, value in values.items()]


class MeasuredRunOperator(RunOperator):
    """Base class of operators for a run that the task `parse` stored.

    :param handle: what `parse` returned. (templated)
    """

    template_fields: Sequence[str] = ("handle",)
    operator_extra_links: Collection[BaseOperatorLink] = (ResultsLink(),)

    def __init__(self, *, handle: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.handle = handle

    def with_store(self, work: Callable[[], Done]) -> Done:
        """Call the idempotent `work` and return its result; retry while the metrics store is unavailable."""
        return with_store(self, self.handle["cluster"], work)


class ValidateOperator(MeasuredRunOperator):
    """Checks a measured run in the store, and marks it as valid or rejected."""

    ui_color: str = "#f3ece2"

    def execute(self, context: Context) -> dict[str, str]:  # noqa: ARG002
        """Check the run. Returns its handle; fails if the run is rejected."""
        job_name = returned_by("parse", self.handle)["job"]
        with airflow_errors():
            result = self.with_store(lambda: Store().measured(job_name))
            self._run = result.run
            record = parse_record(result.record)
            earlier = () if record is None else record.earlier_attempts
            verdict = validate(
                result.run,
                result.status,
                result.log,
                result.measurement,
                earlier_attempts=earlier,
                fabric=load_cluster(result.run.cluster).fabric,
            )
            self.log.info("%s", summaries.summarize_verdict(result.run, verdict))
            self._log(verdict)
            self.with_store(lambda: run_writer(Store()).store_verdict(job_name, verdict))
            if not verdict.valid:
                reasons = "; ".join(
                    f"{check.name}: {check.message.rstrip('.')}" for check in verdict.failures
                )
                raise UserError(f"the result of job '{job_name}' is rejected and not published: {reasons}")
        return dict(self.handle)

    def _log(self, verdict: Verdict) -> None:
        for check in verdict.checks:
            if check.passed:
                self.log.info("✓ %s: %s", check.name, check.message)
            elif check.severity == "warning":
                self.log.warning("! %s: %s", check.name, check.message)
            else:
                self.log.error("✗ %s: %s", check.name, check.message)


class PublishOperator(MeasuredRunOperator):
    """Publishes a valid run, judges its series, and updates its workload's asset; idempotent.

    :param saved_in: if the run loads a checkpoint of the same DAG run, the task group of the job that saved
        it. The checkpoint is then removed, unless the run's plan keeps it.
    """

    ui_color: str = "#e2f3e4"

    def __init__(self, *, saved_in: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.saved_in = saved_in

    def execute(self, context: Context) -> dict[str, str]:
        """Publish the run and judge its series. Returns its job's handle, `{"cluster": …, "job": …}`."""
        job_name, store = returned_by("validate", self.handle)["job"], Store()
        with airflow_errors():
            self.with_store(lambda: run_writer(store).publish(job_name))
            row = self.with_store(lambda: store.run(job_name))
            record = parse_record(self.with_store(lambda: store.record(job_name))["content"])
            self._run = None if record is None else record.run
            finding = self.with_store(lambda: finding_of_run(store, row))
            extra = extra_of_run(row, finding)
            asset = published_results(row["workload"])
            # Set here, and no alias: tasks that use an alias for the first time at once fail, in Airflow 3.3.
            self.outlets = [asset]
            context["outlet_events"][asset].extra = extra
            self.log.info("published %s: %s", job_name, "not judged" if finding is None else finding.told)
            if self.saved_in is not None and self._run is not None and not self._run.keep_checkpoint:
                self._remove_checkpoint(self._run, task_key(context, self.saved_in))
        return dict(self.handle)

    def _remove_checkpoint(self, run: Run, saving: TaskKey) -> None:
        """Remove the checkpoint that the run has loaded from its cluster.

        Only a folder inside that of a job that the task `saving` submitted is removed. If that fails, a
        warning names what remains.
        """
        path = PurePosixPath(run.checkpoint_path or "/")
        jobs = asyncio.run(self.ledger.jobs_of_task(saving))
        folders = [saved_checkpoint_dir(job.job) for job in jobs if job.job is not None]
        if ".." in path.parts or not any(path.is_relative_to(folder) for folder in folders):
            self.log.warning("the checkpoint %s stays: no job of this DAG run saved it", path)
            return
        removed = asyncio.run(
            retry_while_unreachable(
                load_cluster(run.cluster),
                airflow_connection,
                lambda cluster: cluster.run(["rm", "-rf", "--", str(path)], timeout_s=_REMOVING_S),
                self.log.warning,
            )
        )
        if removed.exit_code:
            self.log.warning("the checkpoint %s could not be removed: %s", path, removed.stderr.strip())
        else:
            self.log.info("removed the checkpoint %s, as it was loaded; keep_checkpoint keeps it", path)


class ReportOperator(BaseOperator):
    """Prints the results of the whole DAG run; fails if a planned run has no valid result.

    This task alone decides the DAG run's state. It is a teardown, so it runs even if somebody fails the DAG
    run: Airflow then skips what has not begun and would call the DAG run a success.

    :param plan: what `CheckParamsOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("plan",)
    operator_extra_links: Collection[BaseOperatorLink] = (ResultsLink(),)
    ui_color: str = "#e2f3e4"

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> None:
        """Release the DAG run's reserved budget, print its results, update incidents, and notify people."""
        planned = PlanNames.model_validate(returned_by("check_params", self.plan))
        ti = context["ti"]
        with airflow_errors():
            cluster = planned.cluster
            with_store(self, cluster, lambda: release(budget_owner(context)))
            rows = with_store(self, cluster, lambda: own_runs(Store(), ti.dag_id, ti.run_id))
        # A cleared task makes a new attempt: the latest one of each planned run counts.
        latest = {row["label"]: row for row in sorted(rows, key=lambda row: row["submitted_at"])}
        sentence = summaries.summarize_runs(planned.all_runs, latest)
        self.log.info("%s", sentence)
        if latest_rows := [latest[name] for name in planned.all_runs if name in latest]:
            self.log.info("%s", as_text(_summaries(latest_rows), title=f"results of {ti.run_id}"))
        with airflow_errors():
            notify_of_incidents(self, context)
        missing = [name for name in planned.all_runs if latest.get(name, {}).get("state") != "valid"]
        if missing:
            cause = _first_cause(ti, self.dag.task_ids, planned, missing[0])
            notify(Event.RUN_FAILED, f"{sentence}; {cause}" if cause else sentence, context, self.log.error)
            raise AirflowFailException(
                f"{len(missing)} of {len(planned.all_runs)} planned runs have no valid result: "
                f"{', '.join(missing)}"
            )


def _first_cause(ti: Any, task_ids: Iterable[str], planned: PlanNames, name: str) -> str | None:
    """Return why the first failed task of the run `name` failed; None if no failure is recorded."""
    groups = {
        "performance": planned.runs,
        "checkpoint.save": [pair.save for pair in planned.checkpoint_pairs],
        "checkpoint.load": [pair.load for pair in planned.checkpoint_pairs],
    }
    tasks = [("stage", -1)] + [
        (task_id, index)
        for group, runs in groups.items()
        for index, run in enumerate(runs)
        if run == name
        for task_id in task_ids
        if task_id.startswith(f"{group}.")
    ]
    for task_id, index in tasks:
        why = ti.xcom_pull(task_ids=task_id, key=FAILURE_KEY, map_indexes=index)
        if why is not None:
            return f"{task_id} failed: {why}"
    return None


def _summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns of stored rows that a report shows, without empty ones."""
    names = (
        *("label", "state", "step_time_mean_s", "step_time_over_published", "tokens_per_s", "mfu_percent"),
        *("checkpoint_save_s", "checkpoint_blocked_s", "checkpoint_load_s", "queue_wait_s", "gpu_hours"),
        "reason",
    )
    used = [BY_NAME[name] for name in names if any(row[name] is not None for row in rows)]
    return [{column.title: row[column.name] for column in used} for row in rows]
