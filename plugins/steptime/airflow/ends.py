"""The end of the process of a triggerer's triggers, as the triggerer of `steptime up` sees it."""

from collections.abc import Callable
from typing import Any

from airflow.sdk.execution_time.supervisor import WatchedSubprocess

_LOOKS_S = 0.2


def see_ends_soon() -> None:
    """Let this process, a triggerer, see soon that the process of its triggers has ended.

    Airflow waits up to 10 s for a message of that process before it looks whether it lives. One that closes
    its end of the pipe and is looked at before it is gone sends no further message: a stop took 10 s more.
    """
    serve: Callable[..., int | None] = WatchedSubprocess._service_subprocess

    def serve_briefly(watched: object, max_wait_time: float, **others: Any) -> int | None:
        return serve(watched, min(max_wait_time, _LOOKS_S), **others)

    WatchedSubprocess._service_subprocess = serve_briefly  # type: ignore[method-assign,assignment]
