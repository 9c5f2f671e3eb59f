"""A cluster that answers what a test sets, and records the questions."""

from collections.abc import Sequence
from typing import Any, Self

from steptime.clusters.base import JobStatus


class ScriptedCluster:
    """A cluster whose polls take the next answer: a status for all jobs or an exception; the last repeats."""

    name = "local"

    def __init__(self, *answers: JobStatus | Exception, log: bytes = b"") -> None:
        self.answers = list(answers)
        self.log = log
        self.polls: list[tuple[str, ...]] = []
        self.opened = self.closed = 0

    async def __aenter__(self) -> Self:
        self.opened += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.closed += 1

    async def poll(self, names: Sequence[str]) -> dict[str, JobStatus]:
        self.polls.append(tuple(names))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(names, answer)

    async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        return self.log[offset : offset + limit]

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nothing but poll and read is expected here, not {name}")
