"""How far a job's log was reported, kept so that a restarted process need not begin anew."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from steptime.frozen import Frozen
from steptime.tracking.step_following import KeptSteps


class Reported(Frozen):
    """A place in the log of a job, and what is known there. Nothing of the log's text is in it."""

    job_name: str
    offset: NonNegativeInt
    """All before this byte was reported; a line begins there."""
    known_bytes: NonNegativeInt = 0
    """How many bytes before it `known_by` is of."""
    known_by: str = ""
    """Shows whether it is still the same log."""
    steps: KeptSteps | None = None
    recent: tuple[float, ...] = ()
    """Times of the last steps, seconds."""


def digest(known: bytes) -> str:
    """Return the hash by which bytes of a log are recognized."""
    return hashlib.sha256(known).hexdigest()[:32]


@dataclass(frozen=True)
class LogPlace:
    """Keeps one place of one job; that of another job counts as none."""

    _get: Callable[[], Awaitable[Any]]
    _set: Callable[[Any], Awaitable[None]]

    async def find(self, job_name: str) -> Reported | None:
        """Find the place up to which the log was reported; None if this version can read no such place."""
        try:
            kept = TypeAdapter(Reported | None).validate_python(await self._get())
        except ValidationError:
            return None
        return None if kept is None or kept.job_name != job_name else kept

    async def keep(self, place: Reported) -> None:
        """Keep the place."""
        await self._set(place.model_dump(mode="json"))
