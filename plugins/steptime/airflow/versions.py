"""Features that Airflow 3.1, 3.2 and 3.3 do not share; everything else comes from `airflow.sdk`.

Exceptions and `conf` are imported from the provider common.compat, which finds them in each release.
"""

from typing import Any

try:
    from airflow.sdk import CronTriggerTimetable
except ImportError:  # 3.1
    from airflow.timetables.trigger import CronTriggerTimetable  # type: ignore[assignment]

__all__ = ["CronTriggerTimetable", "never_retry"]


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
