"""Where Airflow keeps how far a job's log was reported.

A task has Airflow's task state store, which its retries find again. A trigger cannot reach that (Airflow
3.3); it has the XComs of its task, which last until the task's next try.
"""

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from steptime.tracking.log_place import LogPlace

if TYPE_CHECKING:
    from airflow.sdk.execution_time.context import TaskStateStoreAccessor
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

_KEY = "log_told"  # a stored name


def in_task_store(store: "TaskStateStoreAccessor") -> LogPlace:
    """Return a task's place in its store."""
    return LogPlace(
        lambda: asyncio.to_thread(store.get, _KEY),
        lambda value: asyncio.to_thread(store.set, _KEY, value),
    )


def in_xcom(ti: "RuntimeTaskInstanceProtocol") -> LogPlace:
    """Return a trigger's place: an XCom of its task."""
    from airflow.sdk.execution_time.xcom import XCom

    of: dict[str, Any] = {
        "key": _KEY,
        "dag_id": ti.dag_id,
        "task_id": ti.task_id,
        "run_id": ti.run_id,
        "map_index": -1 if ti.map_index is None else ti.map_index,
    }

    async def get() -> Any:
        async with _turn():
            return await XCom.aget_one(**of)

    async def keep(value: Any) -> None:
        async with _turn():
            await XCom.aset(value=value, **of)

    return LogPlace(get, keep)


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()


def _turn() -> asyncio.Lock:
    """A lock: its holder may ask Airflow from this event loop.

    A triggerer's requests are answered by one process, one after the other (tens of ms of CPU each), and the
    events of its triggers queue behind them: the end of a job would come after the places of all others.
    """
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
