"""Base classes of operators: refuse a request, convert errors, name the run, cancel the job."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.types import RuntimeTaskInstanceProtocol

from steptime.airflow.connections import airflow_connection
from steptime.airflow.installation import own_ids
from steptime.airflow.notifications import Event, notify
from steptime.airflow.task_state import cancel, task_is_over
from steptime.airflow.triggers import GpuLimitTrigger
from steptime.airflow.versions import AirflowException, AirflowFailException, TaskDeferred, never_retry
from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig
from steptime.errors import OutOfReach, Overdue, SystemFailure, UserError
from steptime.recipes.models import Run
from steptime.runs.launch import GpuLimitReached, Reporter, store_refusal
from steptime.runs.patience import retry_while_unreachable
from steptime.store.ledger import Ledger, LedgerJob, TaskKey

Done = TypeVar("Done")

_KILL_WITHIN_S = 4.0
"""Maximum time of `on_kill` in seconds: Airflow sends SIGKILL 5 s after SIGTERM."""


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
