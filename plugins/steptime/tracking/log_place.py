"""How far a job's log was reported, kept so that a restarted process need not begin anew."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter

from steptime.frozen import Frozen


class _Reported(Frozen):
    job_name: str
    offset: NonNegativeInt
    """All before this byte was reported."""


@dataclass(frozen=True)
class LogPlace:
    """Keeps one place of one job; that of another job counts as none."""

    _get: Callable[[], Awaitable[Any]]
    _set: Callable[[Any], Awaitable[None]]

    async def offset(self, job_name: str) -> int:
        """The byte up to which the log was reported; 0 if nothing is kept."""
        kept = TypeAdapter(_Reported | None).validate_python(await self._get())
        return 0 if kept is None or kept.job_name != job_name else kept.offset

    async def keep(self, job_name: str, offset: int) -> None:
        """Keep that byte."""
        await self._set(_Reported(job_name=job_name, offset=offset).model_dump(mode="json"))
