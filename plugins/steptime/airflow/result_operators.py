"""The operators from a job's log to the metrics store: read, validate, publish, report."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from steptime.airflow import sentences
from steptime.airflow.assets import extra_of_run, published_results
from steptime.airflow.base import (
    RunOperator,
    airflow_errors,
    as_json,
    dag_run_of,
    end_job,
    last_submitted,
    left_job,
)
from steptime.airflow.connections import patiently
from steptime.airflow.failures import FAILURE_KEY
from steptime.airflow.installation import own_runs
from steptime.airflow.links import ResultsLink
from steptime.airflow.notifications import Event, notify
from steptime.airflow.tables import as_text
from steptime.clusters.base import Cluster, JobState, JobStatus
from steptime.clusters.config import load_cluster
from steptime.errors import OutOfReach, SystemFailure, UserError
from steptime.logs.models import TrainingLog
from steptime.recipes.models import Run
from steptime.recipes.planning import Plan
from steptime.results.charges import withdraw_plans
from steptime.results.columns import BY_NAME
from steptime.results.measurement import Measurement
from steptime.results.models import Outcome, Result, Submitted, Verdict

if TYPE_CHECKING:
    from steptime.results.store import Store


class ReadLogOperator(RunOperator):
    """Reads the training log of a job that has ended, well or not, and measures its window.

    What ran is recorded here, in `record.json` beside the log: once, whatever becomes of the numbers.

    What was submitted comes from the task that waited, which hands it on even if it fails. It is pulled
    rather than templated: if nothing was submitted this task is skipped, and a missing XCom is no error.

    :param waited_in: id of the `TrainingSensor` task.
    """

    ui_color: str = "#eef3e2"

    def __init__(self, *, waited_in: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.waited_in = waited_in
        self._run: Run | None = None

    def planned_run(self) -> Run | None:
        """Return the run whose log is read."""
        return self._run

    def execute(self, context: Context) -> dict[str, Any]:
        """Read and measure. Returns the `Outcome` as JSON, without what was submitted."""
        from steptime.results.metrics import measure
        from steptime.results.record import record_path

        submitted = last_submitted(context, self.waited_in)
        if submitted is None:
            raise AirflowSkipException("no job was submitted: there is no log to read")
        if (left := left_job(context, self.waited_in)) is not None:
            raise AirflowSkipException(f"job '{left}' was left as it is, and may run on: its log is not read")
        self._run = run = submitted.run
        with airflow_errors():
            config = load_cluster(submitted.job.cluster)
            status, log, differences = asyncio.run(
                patiently(config, lambda cluster: self._read(cluster, submitted), self.log.warning)
            )
        measurement: Measurement | None = None
        unmeasured = ""
        try:
            measurement = measure(run, log)
        except UserError as error:
            unmeasured = str(error)
        self.log.info("%s", sentences.of_log(run, log, measurement))
        if measurement is None:
            self.log.warning("nothing can be measured: %s", unmeasured)
        else:
            self.log.info("%s", as_text(_numbers(measurement), title=f"steps {measurement.window}"))
        self.log.info("read %d bytes of %s (%s)", log.bytes_read, log.path, log.format)
        self.log.info("its record: %s", record_path(log.path))
        for difference in differences:
            self.log.warning("the record stays as it was written first: %s", difference)
        for problem in log.problems:
            self.log.warning("%s: %s", problem.kind, problem.message)
        return _returned(Outcome(submitted=submitted, status=status, measurement=measurement))

    async def _read(
        self, cluster: Cluster, submitted: Submitted
    ) -> tuple[JobStatus, TrainingLog, Sequence[str]]:
        """How the job ended, and its log; both are kept beside the log, with the run's record.

        Also how this record differs from one that was written before, if there is one.
        """
        from steptime.clusters.collecting import collect_log
        from steptime.logs.reader import read_log
        from steptime.results.parsed_log import keep_parsed_log
        from steptime.results.record import (
            earlier_attempts,
            keep_record,
            make_record,
            recorded_end,
            with_script,
        )

        run, job = submitted.run, submitted.job
        status = (await cluster.poll([job.name]))[job.name]
        if status.state.is_live:
            # Waiting was given up (failed by hand, timed out): only a log that grows no more can be read.
            status = await end_job(cluster, job)
        if status.state is JobState.UNKNOWN:
            status = await recorded_end(cluster, job) or status
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
        )
        log = log.model_copy(update={"path": job.log_path})
        await keep_parsed_log(cluster, job, log)
        attempts = await earlier_attempts(cluster, job, submitted.attempt)
        record = make_record(await with_script(cluster, submitted), status, log, attempts)
        _, differences = await keep_record(cluster, job, record)
        return status, log, differences


async def read_again(outcome: Outcome, warn: Callable[[str], None]) -> tuple[TrainingLog, str]:
    """Read what `parse` has read and recorded of a run, from beside its log.

    Raises OutOfReach if the cluster is for longer than its file allows, SystemFailure if it is gone.
    """
    from steptime.results.parsed_log import kept_parsed_log
    from steptime.results.record import kept_record

    async def read(cluster: Cluster) -> tuple[TrainingLog, str]:
        return await kept_parsed_log(cluster, outcome.job), await kept_record(cluster, outcome.job)

    return await patiently(load_cluster(outcome.job.cluster), read, warn)


def _numbers(measurement: Measurement) -> list[dict[str, Any]]:
    """What was measured, a row for each number."""
    values = measurement.model_dump(mode="json", exclude={"window"}, exclude_none=True)
    return [{"what": name, "value": value} for name, value in values.items()]


class OutcomeOperator(RunOperator):
    """An operator about a run whose log was read.

    :param outcome: what the task before it returned. (templated)
    :param waited_in: id of the `TrainingSensor` task, whose XCom has what was submitted.
    """

    template_fields: Sequence[str] = ("outcome",)
    operator_extra_links: Collection[BaseOperatorLink] = (ResultsLink(),)

    def __init__(self, *, outcome: Any, waited_in: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.outcome = outcome
        self.waited_in = waited_in
        self._run: Run | None = None

    def planned_run(self) -> Run | None:
        """Return the run, once the task has begun."""
        return self._run

    def whole_outcome(self, context: Context) -> Outcome:
        """Return what the task before returned, with what was submitted."""
        submitted = last_submitted(context, self.waited_in)
        outcome = Outcome.model_validate({**self.outcome, "submitted": submitted})
        self._run = outcome.run
        return outcome


def _returned(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a task returns it: without what was submitted, which the task that waited has pushed."""
    return {name: value for name, value in as_json(outcome).items() if name != "submitted"}


class ValidateOperator(OutcomeOperator):
    """Checks a run before its numbers are published; one that fails is recorded as rejected."""

    ui_color: str = "#f3ece2"

    def execute(self, context: Context) -> dict[str, Any]:
        """Judge. Returns the `Outcome` with its verdict as JSON, without what was submitted."""
        from steptime.judging.judgements import reject
        from steptime.results.quality import validate
        from steptime.results.record import recorded_attempts
        from steptime.results.store import Store

        outcome = self.whole_outcome(context)
        run, job = outcome.run, outcome.job
        with airflow_errors():
            log, record = asyncio.run(read_again(outcome, self.log.warning))
            earlier = recorded_attempts(record)
            verdict = validate(run, outcome.status, log, outcome.measurement, earlier_attempts=earlier)
            self.log.info("%s", sentences.of_verdict(run, verdict))
            self._log(verdict)
            judged = outcome.model_copy(update={"verdict": verdict})
            if not verdict.valid:
                store = Store()
                reject(store, _result(self, store, judged, log, record))
                reasons = "; ".join(f"{check.name}: {check.message}" for check in verdict.failures)
                raise UserError(f"the result of job '{job.name}' is rejected and not published: {reasons}")
        return _returned(judged)

    def _log(self, verdict: Verdict) -> None:
        for check in verdict.checks:
            if check.passed:
                self.log.info("✓ %s: %s", check.name, check.message)
            elif check.severity == "warning":
                self.log.warning("! %s: %s", check.name, check.message)
            else:
                self.log.error("✗ %s: %s", check.name, check.message)


def _result(task: BaseOperator, store: "Store", judged: Outcome, log: TrainingLog, record: str) -> Result:
    """What the store takes; a difference from the record that it keeps of this run is logged."""
    fields = {name: getattr(judged, name) for name in Outcome.model_fields}
    result = Result(**fields, log=log, record=record)
    for difference in store.record_differences(result):
        task.log.warning("the metrics store keeps the first record of %s: %s", result.job.name, difference)
    return result


class PublishOperator(OutcomeOperator):
    """Writes a valid result into the metrics store; writing it again changes nothing."""

    ui_color: str = "#e2f3e4"

    def execute(self, context: Context) -> str:
        """Publish and judge, and notify of what is new by it. Returns the job's name, the key of the result.

        If a try dies before everybody is notified, the next one does the rest.
        """
        from steptime.judging.comparison import finding_of_run, fresh_runs_command
        from steptime.judging.judgements import mark_notified, pending_notifications, publish
        from steptime.results.store import Store

        judged = self.whole_outcome(context)
        job_name = judged.job.name
        with airflow_errors():
            store = Store()
            log, record = asyncio.run(read_again(judged, self.log.warning))
            publish(store, _result(self, store, judged, log, record))
            row = store.run(job_name)
            extra = extra_of_run(row, finding_of_run(store, row))
            asset = published_results(judged.run.recipe.workload)
            # Set here, and no alias: tasks that use an alias for the first time at once fail, in Airflow 3.3.
            self.outlets = [asset]
            context["outlet_events"][asset].extra = extra
            stands = ", ".join(filter(None, (extra["verdict"], extra["suspicion"])))
            self.log.info("published %s: %s", job_name, stands or "not judged")
            for one in pending_notifications(store, job_name):
                sentence = sentences.of_regression(one, fresh_runs_command(store, one.run, one.standing))
                self.log.info("%s", sentence)
                notify(Event(f"regression {one.standing.state}"), sentence, context, self.log.error)
                mark_notified(store, job_name, one)
        return job_name


class ReportOperator(BaseOperator):
    """Prints the results of the whole DAG run, and fails if a planned run has no valid one.

    The one task that decides the DAG run's state: as a teardown it runs even if somebody fails the DAG run,
    when Airflow skips what has not begun and would otherwise call the rest a success.

    :param plan: what `CheckParamsOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("plan",)
    operator_extra_links: Collection[BaseOperatorLink] = (ResultsLink(),)
    ui_color: str = "#e2f3e4"

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> None:
        """Print the table of the DAG run's results."""
        from steptime.results.store import Store

        planned = Plan.model_validate(self.plan)
        ti = context["ti"]
        with airflow_errors():
            store = Store()
            withdraw_plans([dag_run_of(context)], [planned.request.cluster])
            rows = own_runs(store, ti.dag_id, ti.run_id)
        # A cleared task makes a new attempt: the latest one of each planned run counts.
        latest = {row["label"]: row for row in sorted(rows, key=lambda row: row["submitted_at"])}
        sentence = sentences.of_runs([run.label for run in planned.all_runs], latest)
        self.log.info("%s", sentence)
        if found := [latest[run.label] for run in planned.all_runs if run.label in latest]:
            self.log.info("%s", as_text(_summaries(found), title=f"results of {ti.run_id}"))
        missing = [run.label for run in planned.all_runs if latest.get(run.label, {}).get("state") != "valid"]
        if missing:
            cause = _first_cause(ti, planned, missing[0])
            notify(Event.RUN_FAILED, f"{sentence}; {cause}" if cause else sentence, context, self.log.error)
            raise AirflowFailException(
                f"{len(missing)} of {len(planned.all_runs)} planned runs have no valid result: "
                f"{', '.join(missing)}"
            )


def _first_cause(ti: Any, planned: Plan, label: str) -> str | None:
    """Return the recorded failure of the first task that kept a run from a valid result, or None."""
    groups = {
        "performance": planned.runs,
        "checkpoint.save": [pair.save for pair in planned.checkpoint_pairs],
        "checkpoint.load": [pair.load for pair in planned.checkpoint_pairs],
    }
    tasks = [("stage", -1)] + [
        (f"{group}.{task}", index)
        for group, runs in groups.items()
        for index, run in enumerate(runs)
        if run.label == label
        for task in ("submit", "wait", "parse", "validate", "publish")
    ]
    for task_id, index in tasks:
        why = ti.xcom_pull(task_ids=task_id, key=FAILURE_KEY, map_indexes=index)
        if why is not None:
            return f"{task_id} failed: {why}"
    return None


def _summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns of stored rows that a report shows, without those that none has a value for."""
    names = (
        *("label", "state", "step_time_mean_s", "step_time_over_published", "tokens_per_s", "mfu_percent"),
        *("checkpoint_save_s", "checkpoint_blocked_s", "checkpoint_load_s", "queue_wait_s", "gpu_hours"),
        "reason",
    )
    used = [BY_NAME[name] for name in names if any(row[name] is not None for row in rows)]
    return [{column.title: row[column.name] for column in used} for row in rows]
