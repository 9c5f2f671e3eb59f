"""Record why a task failed, so that its DAG run's report and tab can show the reason."""

from airflow.sdk import Context

FAILURE_KEY = "failure"
"""XCom of a failed task: the message of its exception."""
_LONGEST = 2000


def record_failure(context: Context) -> None:
    """Push the message of a task's exception as XCom; an `on_failure_callback`.

    Airflow also calls it in the DAG processor for a task that was lost with its worker: there is no exception
    then, and nothing is pushed.
    """
    error = context.get("exception")
    if isinstance(error, BaseException):
        context["ti"].xcom_push(FAILURE_KEY, str(error)[:_LONGEST])
