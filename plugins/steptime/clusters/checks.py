"""Checks for `steptime cluster check` that a cluster kind contributes, and their results."""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from steptime.frozen import Frozen


class CheckResult(StrEnum):
    """Whether a check passed."""

    OK = "ok"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"

    @property
    def mark(self) -> str:
        """The symbol that is printed for this result."""
        return {CheckResult.OK: "✓", CheckResult.FAILED: "✗", CheckResult.NOT_APPLICABLE: "–"}[self]


class CheckOutcome(Frozen):
    """What one check of a cluster found: its result, a sentence, and a remedy."""

    check: str
    """The check's name, such as `login`."""
    result: CheckResult
    message: str
    """What was found, what is wrong, or why the check does not apply."""
    remedy: str = ""
    """What to do about a failure; empty if `message` says it."""

    def __str__(self) -> str:
        return f"{self.result.mark} {self.check}: {self.message}{self.remedy and f' → {self.remedy}'}"


class CheckFailedError(Exception):
    """A check failed: what is wrong and how to fix it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class NotApplicableError(Exception):
    """A check does not apply to this cluster; the message says why."""


class ClusterCheck(NamedTuple):
    """One check of `steptime cluster check`: its name, and the function that performs it."""

    name: str
    look: Callable[[], Awaitable[str]]
    """Returns what was found. Raises CheckFailedError, NotApplicableError, UserError or SystemFailure."""
    is_required: bool = False
    """Whether all later checks are left out if this one fails."""


def not_applicable(names: Sequence[str], why: str) -> tuple[ClusterCheck, ...]:
    """Return checks with these names that always report "not applicable", with the reason `why`."""

    async def look() -> str:
        raise NotApplicableError(why)

    return tuple(ClusterCheck(name, look) for name in names)


def clock_difference(there: float, here: float, *, at_most_s: float) -> str:
    """Describe how far the cluster's clock is from this machine's, both read as Unix times.

    A second apart counts as equal, because the cluster's clock is read in whole seconds.
    Raises CheckFailedError if they differ by more than `at_most_s` seconds.
    """
    apart_s = there - here
    way = "ahead of" if apart_s > 0 else "behind"
    if abs(apart_s) > at_most_s:
        raise CheckFailedError(
            f"the cluster's clock is {abs(apart_s):.0f} s {way} this machine's",
            "synchronize both machines by NTP (timedatectl): times of jobs and logs are compared",
        )
    if abs(apart_s) <= 1:
        return "it agrees with this machine's clock"
    return f"{abs(apart_s):.0f} s {way} this machine's clock"
