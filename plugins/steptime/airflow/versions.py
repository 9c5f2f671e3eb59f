"""What Airflow 3.1, 3.2 and 3.3 have in different places, or not at all; the rest is in `airflow.sdk`."""

from typing import Any

try:
    from airflow.sdk import CronTriggerTimetable
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        TaskDeferred,
    )
except ImportError:  # 3.1
    from airflow.configuration import conf
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        TaskDeferred,
    )
    from airflow.timetables.trigger import CronTriggerTimetable  # type: ignore[assignment]

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "CronTriggerTimetable",
    "TaskDeferred",
    "conf",
    "never_retry",
]


def never_retry(exception: type[BaseException]) -> dict[str, Any]:
    """Return the arguments of an operator whose task is not retried after `exception`.

    Before Airflow 3.3, which has no retry policies, such a task is not retried at all.
    """
    try:
        from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
    except ImportError:
        return {"retries": 0}
    rule = RetryRule(exception=exception, action=RetryAction.FAIL)
    return {"retry_policy": ExceptionRetryPolicy(rules=[rule])}
