"""Where it is kept how far a job's log was told, so that who goes on after a restart need not begin anew.

A task has Airflow's task state store, which its retries find again. A trigger cannot reach that (Airflow
3.3), but the XComs of its task, which last until the task's next try.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeInt, TypeAdapter

from steptime.frozen import Frozen

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

_KEY = "log_told"


class _Told(Frozen):
    job_name: str
    offset: NonNegativeInt
    """All before this byte was told."""


@dataclass(frozen=True)
class LogPlace:
    """Keeps one place of one job; that of another job counts as none."""

    _get: Callable[[], Awaitable[Any]]
    _set: Callable[[Any], Awaitable[None]]

    async def offset(self, job_name: str) -> int:
        """The byte up to which the log was told; 0 where nothing is kept."""
        told = TypeAdapter(_Told | None).validate_python(await self._get())
        return 0 if told is None or told.job_name != job_name else told.offset

    async def keep(self, job_name: str, offset: int) -> None:
        """Keep that byte."""
        await self._set(_Told(job_name=job_name, offset=offset).model_dump(mode="json"))


def in_task_store(store: "TaskStateStoreAccessor") -> LogPlace:
    """A task's place."""
    return LogPlace(
        lambda: asyncio.to_thread(store.get, _KEY),
        lambda told: asyncio.to_thread(store.set, _KEY, told),
    )


def in_xcom(ti: "RuntimeTaskInstanceProtocol") -> LogPlace:
    """A trigger's place: an XCom of its task."""
    from airflow.sdk.execution_time.xcom import XCom

    of: dict[str, Any] = {
        "key": _KEY,
        "dag_id": ti.dag_id,
        "task_id": ti.task_id,
        "run_id": ti.run_id,
        "map_index": -1 if ti.map_index is None else ti.map_index,
    }
    return LogPlace(lambda: XCom.aget_one(**of), lambda told: XCom.aset(value=told, **of))
