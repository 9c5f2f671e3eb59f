"""What a task that fails leaves for the page: why, in a sentence."""

from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl as listens

from steptime.web.dag_runs import FAILURE_KEY

if TYPE_CHECKING:
    from airflow.sdk import TaskInstanceState

_LONGEST = 2000


@listens
def on_task_instance_failed(
    previous_state: "TaskInstanceState | None",  # noqa: ARG001
    task_instance: Any,
    error: BaseException | str | None,
) -> None:
    """Keep the error of a task of steptime's DAGs as an XCom of it; called in the task's own process.

    Airflow's scheduler and API server call it, too, for tasks that did not fail by themselves: those have no
    error of their own.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if not isinstance(task_instance, RuntimeTaskInstance) or error is None:
        return
    if "steptime" in task_instance.task.dag.tags:
        task_instance.xcom_push(FAILURE_KEY, str(error)[:_LONGEST])
