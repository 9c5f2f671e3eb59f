"""Base classes of operators and triggers: find the run, convert errors, cancel the job."""

import asyncio
import logging
import threading
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Self, TypeVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.types import RuntimeTaskInstanceProtocol
from airflow.triggers.base import BaseTrigger, TriggerEvent
from pydantic import BaseModel
from pydantic_core import from_json

from steptime.airflow.connections import airflow_connection
from steptime.airflow.installation import own_ids
from steptime.airflow.notifications import Event, notify
from steptime.airflow.versions import AirflowException, AirflowFailException, TaskDeferred, never_retry
from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig, load_cluster, open_cluster
from steptime.errors import OutOfReach, Overdue, SystemFailure, UserError
from steptime.frozen import Frozen
from steptime.recipes.models import Run
from steptime.recipes.planning import Plan
from steptime.runs import launch
from steptime.runs.launch import GpuLimitReached, Reporter, store_refusal
from steptime.runs.patience import retry_while_unreachable
from steptime.store.ledger import Ledger, LedgerJob, TaskKey

Done = TypeVar("Done")

_log = logging.getLogger(__name__)

SETTLING_S = 8.0
"""Minimum age of a trigger when it fires, in seconds. If it fires while the worker that deferred the task
is still ending, Airflow can take the task for killed and fail it."""
_KILL_WITHIN_S = 4.0
"""Maximum time of `on_kill` in seconds: Airflow sends SIGKILL 5 s after SIGTERM."""
_ASKED_AGAIN_AFTER_S = 0.5
DELETED = "deleted"
"""Stands for the state of a task instance that no longer exists."""
OVER = (DELETED, "success", "failed", "skipped", "removed", "upstream_failed")
"""States of a task that has ended or was deleted. In all others, cleared included, it will go on."""


def as_json(model: BaseModel) -> dict[str, Any]:
    """Dump a model with all its fields for XCom and triggers, as JSON in which NaN is a string.

    Defaults are included: a release that changes one must not change a run in flight.
    """
    json: dict[str, Any] = from_json(model.model_dump_json())
    return json


class PairNames(Frozen):
    """The names of a run that saves a checkpoint, and of the run that loads it."""

    save: str
    load: str


class PlanNames(Frozen):
    """What the first task of a workload's DAG returns as XCom: the names of the runs that it has planned.

    The job ledger has the plans; see `Ledger.planned_run`.
    """

    cluster: str
    runs: tuple[str, ...]
    checkpoint_pairs: tuple[PairNames, ...]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the names of a plan's runs."""
        pairs = (PairNames(save=pair.save.name, load=pair.load.name) for pair in plan.checkpoint_pairs)
        return cls(
            cluster=plan.request.cluster,
            runs=tuple(run.name for run in plan.runs),
            checkpoint_pairs=tuple(pairs),
        )

    @property
    def all_runs(self) -> tuple[str, ...]:
        """The names of all runs: first those without a pair, then both of each pair."""
        return self.runs + tuple(name for pair in self.checkpoint_pairs for name in (pair.save, pair.load))


class WaitingTrigger(BaseTrigger):
    """A trigger that fires once, with the result of its method `event`.

    Subclasses pass the arguments of their own constructor as `arguments`, so that Airflow can serialize the
    trigger.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments = arguments

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which a triggerer can recreate this trigger."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the event once it has happened; Airflow calls this."""
        made_at = time.monotonic()
        event = await self.event()
        await asyncio.sleep(max(0.0, made_at + SETTLING_S - time.monotonic()))
        yield event

    @abstractmethod
    async def event(self) -> TriggerEvent:
        """Wait for the event and return it."""


class GpuLimitTrigger(WaitingTrigger):
    """Fires once a job fits into the GPU limit of its cluster, or need not be submitted any more.

    :param job: the job's name in the job ledger (the table `jobs`).
    """

    def __init__(self, *, job: str) -> None:
        super().__init__(job=job)
        self.job = job

    async def event(self) -> TriggerEvent:
        """Wait until there is room or the job is no longer needed; return an event with the job's name."""
        await launch.wait_for_gpus(self.job, Ledger(self.log.warning), self.log.info)
        return TriggerEvent({"job": self.job})  # type: ignore[no-untyped-call]


class Refused(SystemExit):
    """Ends a task whose request is impossible, after the reason was logged as an error.

    Airflow prints any other exception of a task with its traceback, which would bury the reason; for a
    SystemExit it prints one line.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(UserError.exit_code)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


class RefusingOperator(BaseOperator):
    """Base class of a DAG's first task: it refuses an impossible request in one sentence, without a retry."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**never_retry(Refused), **kwargs})

    @contextmanager
    def refusals(self, context: Context) -> Iterator[None]:
        """Convert a UserError of the block into `Refused`, after notifying people that the run failed.

        Other errors are converted by `airflow_errors`.
        """
        with airflow_errors():
            try:
                yield
            except UserError as error:
                self.log.error("%s", error)
                notify(Event.RUN_FAILED, str(error), context, self.log.error)
                raise Refused(str(error)) from None


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Convert UserError into failures that Airflow does not retry, and SystemFailure into retried ones.

    Airflow does not retry after OutOfReach or Overdue either: steptime itself has already waited for as long
    as the cluster's file allows.
    """
    try:
        yield
    except UserError as error:
        raise AirflowFailException(str(error)) from None
    except (OutOfReach, Overdue) as error:
        raise AirflowFailException(str(error)) from None
    except SystemFailure as error:
        raise AirflowException(str(error)) from error


def returned_by(task_id: str, value: Any) -> Any:
    """Return what a task of this DAG run returned to this one.

    Raises AirflowFailException if that is nothing, as for a task that a person marked as success: only its
    own run can return it.
    """
    if value is None:
        raise AirflowFailException(
            f"the task '{task_id}' returned nothing, as when it did not run and was marked as success: clear "
            f"'{task_id}' to run it"
        )
    return value


class RunOperator(BaseOperator):
    """Base class of operators that work on one planned run, whose name labels the task in Airflow's UI."""

    _run: Run | None = None
    """The run, as soon as the running task knows it."""

    def __init__(self, *, map_index_template: str | None = "{{ task.cell }}", **kwargs: Any) -> None:
        super().__init__(map_index_template=map_index_template, **kwargs)

    @property
    def cell(self) -> str:
        """The run's name, `tiny·fp32·2`, for the template that names the mapped task; empty if not known."""
        return "" if self._run is None else self._run.name

    @property
    def ledger(self) -> Ledger:
        """The job ledger, which waits while the metrics store is away, and says so in the task's log."""
        return Ledger(self.log.warning)


class CancelsJobOnKill(RunOperator):
    """Base class of operators whose `on_kill` cancels the job if the task has ended or was deleted.

    Airflow calls `on_kill` both when a person marks a running task as failed and when its worker shuts down
    or loses its connection. A lost worker must not end a training that a retry will find again, so `on_kill`
    asks Airflow for the task's state.
    """

    _guarded: tuple[str, str] | None = None
    _task_instance: RuntimeTaskInstanceProtocol | None = None
    task_was_over = False

    def guard(self, job: LedgerJob, context: Context) -> None:
        """Set the job that `on_kill` cancels.

        Raises AirflowFailException if `on_kill` has already found the task ended or deleted.
        """
        self._guarded = (job.cluster, job.name)
        self._task_instance = context["ti"]
        if self.task_was_over:
            raise AirflowFailException(
                f"the task was ended or deleted from outside while it submitted job '{job.name}'"
            )

    def reporter(self, context: Context) -> Reporter:
        """Return a reporter that logs the messages of a job's launch, and calls `guard` with the job."""
        return Reporter(info=self.log.info, warn=self.log.warning, guard=lambda job: self.guard(job, context))

    async def submit_with_retries(
        self, config: ClusterConfig, submit: Callable[[Cluster], Awaitable[Done]]
    ) -> Done:
        """Call `submit` with the open cluster; retry while the cluster is unreachable or at a submit limit.

        If the cluster's limit on submitted jobs refuses the job for too long, this is recorded in the job
        ledger, and Overdue is raised.
        """
        try:
            return await retry_while_unreachable(config, airflow_connection, submit, self.log.warning)
        except Overdue as refusal:
            if self._guarded is not None and (job := await self.ledger.find(self._guarded[1])) is not None:
                await store_refusal(job, refusal, self.ledger)
            raise

    def wait_for_gpus(self, full: GpuLimitReached) -> NoReturn:
        """Defer the task until the GPU limits leave room for the job named in `full`."""
        self.log.info("%s", full)
        raise TaskDeferred(trigger=GpuLimitTrigger(job=full.job_name), method_name="go_on")

    def go_on(self, context: Context, event: dict[str, Any]) -> Any:
        """Execute this task again, now that the GPU limits leave room for its job."""
        self.log.info("job %s has room", event["job"])
        return self.execute(context)

    def on_kill(self) -> None:
        """Cancel the job if the task has ended or was deleted; not if it was cleared or will be retried."""
        if self._guarded is None or self._task_instance is None:
            return
        # A thread of its own: this is a signal handler, and the main thread may be inside an event loop.
        thread = threading.Thread(
            target=self._cancel_if_task_is_over, args=(*self._guarded, self._task_instance), daemon=True
        )
        thread.start()
        thread.join(_KILL_WITHIN_S)

    def _cancel_if_task_is_over(
        self, cluster_name: str, job_name: str, task_instance: RuntimeTaskInstanceProtocol
    ) -> None:
        if task_is_over(task_instance, job_name, self.log.info):
            self.task_was_over = True
            asyncio.run(cancel(cluster_name, job_name))


def task_is_over(ti: RuntimeTaskInstanceProtocol, job_name: str, info: Callable[[str], None]) -> bool:
    """Return whether the task instance has ended or was deleted, so that nothing will resume it.

    Airflow is asked twice, because it also calls `on_kill` when a task only moves to another triggerer or
    worker, or waits for its retry; this call blocks for half a second in between. If Airflow does not answer,
    the result is False, and the teardown `end` ends the job later.

    Args:
        ti: the task instance that `on_kill` was called for.
        job_name: name of the job that the message is about.
        info: gets a line with the result and its reason.
    """
    for moment_s in (0, _ASKED_AGAIN_AFTER_S):
        time.sleep(moment_s)
        try:
            state = _read_state(ti)
        except AirflowRuntimeError as error:
            info(f"Airflow cannot be asked about this task, so job {job_name} keeps running: {error}")
            return False
        if state not in OVER:
            info(f"this task is {state or 'cleared'} and will go on: job {job_name} keeps running for it")
            return False
    info(f"nothing will resume this task ({state}): cancelling job {job_name}")
    return True


def _read_state(ti: RuntimeTaskInstanceProtocol) -> str | None:
    """Return a task instance's state: None if it has not begun or was cleared, DELETED if it is gone.

    It can be called in a task and in a trigger. Raises AirflowRuntimeError if Airflow does not answer.
    """
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=-1 if ti.map_index is None else ti.map_index,
    )
    return next(iter(states.get(ti.run_id, {}).values()), DELETED)


async def cancel(cluster_name: str, job_name: str) -> None:
    """Connect to a cluster, cancel a job, and record that in the ledger."""
    async with open_cluster(load_cluster(cluster_name), airflow_connection) as cluster:
        await launch.end_job(cluster, job_name, Ledger(_log.warning))


def task_key(context: Context, task_group: str | None = None) -> TaskKey:
    """Return the key of a task's jobs in the ledger: DAG run, map index, task group (default: its own)."""
    ti = context["ti"]
    return TaskKey(
        installations=tuple(own_ids()),
        dag_id=ti.dag_id,
        dag_run_id=ti.run_id,
        task_group=ti.task_id.rpartition(".")[0] if task_group is None else task_group,
        map_index=-1 if ti.map_index is None else ti.map_index,
    )
