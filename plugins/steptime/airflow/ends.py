"""The end of the process of a triggerer's triggers, as the triggerer of `steptime up` sees it."""

import inspect
from collections.abc import Callable
from typing import Any

from airflow.sdk.execution_time.supervisor import WatchedSubprocess

_LOOKS_S = 0.2


def see_ends_soon() -> None:
    """Let this process, a triggerer, see soon that the process of its triggers has ended as it was asked to.

    Airflow waits up to 10 s for a message of that process before it looks whether it lives. One that closes
    its end of the pipe and is looked at before it is gone sends no further message: a stop took 10 s more.

    Raises TypeError, and changes nothing, if this Airflow waits in another way.
    """
    serve: Callable[..., int | None] = WatchedSubprocess._service_subprocess
    inspect.signature(serve).bind(None, max_wait_time=1.0, expect_signal=None)

    def serve_briefly(
        watched: object, max_wait_time: float, *, expect_signal: int | None = None, **others: Any
    ) -> int | None:
        # An end is expected. Other waits stay: before each of them the database is asked for triggers.
        if expect_signal is not None:
            max_wait_time = min(max_wait_time, _LOOKS_S)
        return serve(watched, max_wait_time, expect_signal=expect_signal, **others)

    WatchedSubprocess._service_subprocess = serve_briefly  # type: ignore[method-assign,assignment]
