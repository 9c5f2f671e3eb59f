"""Compatibility with Airflow 3.1 to 3.3: what differs between these versions is imported from here."""

from datetime import timedelta
from inspect import signature
from typing import Any

from airflow.sdk import BaseHook, Connection
from airflow.sdk import Variable as _Variable

from steptime.waiting import poll_until

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

    IS_3_1 = False
except ImportError:
    IS_3_1 = True
    from airflow.configuration import conf
    from airflow.exceptions import (  # type: ignore[attr-defined,no-redef]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        TaskDeferred,
    )
    from airflow.timetables.trigger import CronTriggerTimetable  # type: ignore[assignment]

try:
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    HAS_RETRY_POLICIES = True
except ImportError:  # before 3.3
    HAS_RETRY_POLICIES = False

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "TaskDeferred",
    "Variable",
    "conf",
    "cron_timetable",
    "never_retry",
    "response_limit",
]


class ListedVariable(_Variable):
    """A Variable whose keys can be listed, for Airflow before 3.3: a second Variable stores the list."""

    INDEX = "steptime_variables"

    @classmethod
    def keys(cls, prefix: str | None = None) -> list[str]:
        """Return the keys that begin with `prefix`, of Variables set by this class."""
        known = str(cls.get(cls.INDEX, default="")).split()
        return [key for key in known if key.startswith(prefix or "")]

    @classmethod
    def set(cls, key: str, value: Any, description: str | None = None, serialize_json: bool = False) -> None:
        """Set the Variable and list its key, again if a concurrent task has overwritten the list."""
        super().set(key, value, description=description, serialize_json=serialize_json)

        def is_noted() -> bool:
            if key in (known := cls.keys()):
                return True
            super(ListedVariable, cls).set(
                cls.INDEX, " ".join([*known, key]), description="Keys of steptime's Variables."
            )
            return False  # looked at once more, after a moment in which another task may overwrite it

        poll_until(is_noted, every_s=1)


Variable: type[_Variable] = _Variable if hasattr(_Variable, "keys") else ListedVariable


async def get_connection(name: str) -> Connection:
    """Return an Airflow connection, in a task or a trigger. Raises AirflowNotFoundException.

    In tasks of Airflow 3.1 `BaseHook.aget_connection` does not find connections that are stored in Airflow's
    database, so the blocking `get_connection` is called then.
    """
    try:
        return await BaseHook.aget_connection(name)
    except AirflowNotFoundException:
        if not IS_3_1:
            raise
        return BaseHook.get_connection(name)


def never_retry(exception: type[BaseException]) -> dict[str, Any]:
    """Return operator arguments that prevent a retry after `exception`.

    Airflow before 3.3 has no retry policies: there the arguments turn off all retries of the task.
    """
    if not HAS_RETRY_POLICIES:
        return {"retries": 0}
    rule = RetryRule(exception=exception, action=RetryAction.FAIL)
    return {"retry_policy": ExceptionRetryPolicy(rules=[rule])}


def response_limit(operator: type[Any], limit: timedelta) -> dict[str, Any]:
    """Return operator arguments that end an unanswered request for approval after `limit`.

    The argument has another name in the standard provider that comes with Airflow 3.1.
    """
    known = signature(operator.__init__).parameters
    return {"response_timeout" if "response_timeout" in known else "execution_timeout": limit}


def cron_timetable(cron: str) -> Any:
    """Return a cron schedule in UTC whose first run is the next matching time."""
    # With its default Airflow would also run the time just past, up to a tenth of the period ago.
    return CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta(0))
