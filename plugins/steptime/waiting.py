"""Wait: poll until a condition is met, and retry after growing pauses."""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import tenacity
from tenacity import RetryCallState

Value = TypeVar("Value")
Work = TypeVar("Work", bound=Callable[..., Any])


def poll_until(look: Callable[[], Value], *, every_s: float, timeout_s: float = math.inf) -> Value:
    """Call `look` until it returns a true value or the timeout has passed; return its last value."""
    deadline = time.monotonic() + timeout_s
    while not (value := look()) and time.monotonic() < deadline:
        time.sleep(every_s)
    return value


async def poll_until_async(
    look: Callable[[], Awaitable[Value]], *, every_s: float, timeout_s: float = math.inf
) -> Value:
    """Await `look()` until it returns a true value or the timeout has passed; return its last value."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = await look()
        if value or time.monotonic() >= deadline:
            return value
        await asyncio.sleep(every_s)


def backoff_s(failures: int, *, longest_s: float, first_s: float = 1.0) -> float:
    """Return the pause after this many failures in a row: `first_s`, doubling up to `longest_s` seconds."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 100))


def retrying(
    *errors: type[Exception],
    longest_s: float,
    first_s: float = 1.0,
    timeout_s: float = math.inf,
    before_sleep: Callable[[RetryCallState], None] | None = None,
) -> Callable[[Work], Work]:
    """Decorate a function or coroutine function so that it is retried while it raises one of `errors`.

    The function must be idempotent. Pauses double from `first_s` up to `longest_s`. Each is up to a quarter
    longer, at random, so that callers do not retry at the same time. An error can ask for a longer pause with
    an attribute `retry_after_s`.

    Args:
        errors: the errors after which it is called again.
        longest_s: the longest pause.
        first_s: the first pause.
        timeout_s: the last error is raised if the next pause would end later than this.
        before_sleep: called before each pause with tenacity's state of the call; its exceptions end the call.
    """

    def pause_s(state: RetryCallState) -> float:
        growing_s = backoff_s(state.attempt_number, first_s=first_s, longest_s=longest_s)
        error = state.outcome and state.outcome.exception()
        return max(
            random.uniform(1, 1.25) * growing_s,  # noqa: S311 (no secret)
            getattr(error, "retry_after_s", 0.0),
        )

    return tenacity.retry(  # type: ignore[return-value]  # it has attributes besides
        retry=tenacity.retry_if_exception_type(errors),
        wait=pause_s,
        stop=tenacity.stop_before_delay(timeout_s),
        before_sleep=before_sleep,
        reraise=True,
    )


def duration(seconds: float) -> str:
    """Format a duration for people: `40 s`, `12 min`, `3.5 h`, `7.0 days`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 3600 * 100 else f"{seconds / 86400:.1f} days"
