"""Follow a training's log beside the polls of its job; an unreadable log never delays the polls."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean

from steptime.clusters.base import Cluster, Job
from steptime.errors import SystemFailure
from steptime.logs.attempts import Attempts
from steptime.logs.events import Event, LogEvents
from steptime.logs.failure_timeline import FailureSign
from steptime.logs.formats import StepPrinted
from steptime.logs.line_forms import RepeatedStep
from steptime.logs.log_completeness import report_not_finite
from steptime.logs.training_log import Problem, Step
from steptime.recipes.models import Run
from steptime.waiting import backoff_s, duration

_RECENT_STEPS = 10
"""Steps whose mean time gives the estimate of the time left."""
_STEPS_ON_LINES_OF_THEIR_OWN = 5
"""If more steps than this are new since the last report, one line sums them up."""
_LONGEST_SILENCE_S = 60
_WITHIN_S = 2.0
"""How long a look waits for the log; what is not read by then is read in the background."""
_AT_END_WITHIN_S = 10.0
_READ_WITHIN_S = 120.0
"""Time limit for reading one piece of the log; clusters have shorter limits of their own."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0
"""Pauses after a failed read, in seconds."""
_PIECE_BYTES = 1 << 20
_MOST_BYTES_A_LOOK = 2 * _PIECE_BYTES
"""A read ends once it has this many bytes, apart from what it skipped; the next look continues there."""
_PARSER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="steptime-log")
"""Parses all logs: a MiB of errors takes half a second, which would hold up everything on the event loop."""
_ANOTHER_LOG = "the training's log was cut or replaced: it is followed from its beginning"
_KNOWN_BYTES = 512
"""Bytes before the new ones that are read again each time, to recognise the log."""
_RESTARTS = ("restart", "duplicate_steps")
_TAIL_BYTES = 256 << 10
"""Bytes at the end of a long log that are reported when a process begins to follow it."""


class StepFollower:
    """Follows a growing log and returns each new step once, and the first problem of each kind.

    Feed it the log's bytes in order, in pieces of any size. A step printed by several ranks, or redrawn by a
    progress bar, counts once. A restart is returned as a problem, and the steps that it repeats again.
    """

    def __init__(self, step_line: str | None = None) -> None:
        self._step_line = step_line
        self._events = LogEvents(step_line)
        self._attempts = Attempts()
        self._told: set[str] = set()

    def feed(self, data: bytes) -> list[Step | Problem]:
        """Return the new steps and problems in the lines that `data`, the log's next bytes, completes."""
        news = [news for event in self._events.feed(data) for news in self._news(event)]
        self._attempts.forget_old()
        return news

    def skip(self) -> None:
        """Prepare for bytes from a later position of the log, which must be the start of a line."""
        self._events = LogEvents(self._step_line)

    def finish(self) -> list[Step | Problem]:
        """Return the new steps and problems in an unterminated last line, once the job has ended."""
        return [news for event in self._events.finish() for news in self._news(event)]

    def _news(self, event: Event) -> list[Step | Problem]:
        if isinstance(event, FailureSign):
            return self._once(event.problem()) if event.is_told_at_once else []
        if isinstance(event, RepeatedStep):
            return [news for step in self._attempts.unclear(event) for news in self._steps(step)]
        return self._steps(event) if isinstance(event, StepPrinted) else []

    def _steps(self, event: StepPrinted) -> list[Step | Problem]:
        news = self._attempts.add(event)
        about = {event.step.global_step: event.not_finite} if event.not_finite else {}
        broken = [once for problem in report_not_finite(about) for once in self._once(problem)]
        at = len(news) - 1 if news else 0
        return [*news[:at], *broken, *news[at:]]

    def _once(self, problem: Problem) -> list[Step | Problem]:
        if problem.kind in self._told:
            return []
        self._told.add(problem.kind)
        return [problem]


class LogFollower:
    """Reads what is appended to a training's log; reports each step once, and one problem of each kind.

    Its state is not saved: a new process that starts with a long log reports the end of it again. Reading
    continues in the background. If it fails or takes too long, a warning is logged, and it is retried after
    growing pauses.
    """

    def __init__(
        self,
        run: Run,
        job: Job,
        *,
        info: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._run = run
        self._job = job
        self._info = info
        self._warn = warn
        self._reading: asyncio.Task[None] | None = None
        self._has_begun = self._has_skipped = False
        self._offset = 0
        """Position of the next byte to read."""
        self._before = b""
        """The last bytes before that position."""
        self._was_shorter = False
        self._failures = 0
        self._not_before = 0.0
        self._steps = StepFollower(run.recipe.step_line)
        self._running_since: float | None = None
        self._last_report = 0.0
        self._unreported: list[Step] = []
        self._recent: deque[float] = deque(maxlen=_RECENT_STEPS)

    async def look(self, cluster: Cluster) -> None:
        """Read the new part of the log, waiting for it only briefly; call repeatedly while the job runs."""
        if self._running_since is None:
            self._running_since = time.monotonic()
        if not self._is_reading and time.monotonic() >= self._not_before:
            await self._read_on(cluster, _WITHIN_S)

    async def finish(self, cluster: Cluster) -> None:
        """Read the rest of the log after the job's end, if that does not take long."""
        was_reading = self._is_reading
        await self._read_on(cluster, _AT_END_WITHIN_S)
        if was_reading and not self._is_reading:  # it may have read on before the last lines were there
            await self._read_on(cluster, _AT_END_WITHIN_S)
        if self._is_reading:
            self._warn(f"the rest of {self._job.log_path} is slow to come and not shown here")
            await self.stop()  # a piece may still be parsed
        else:
            self._take_in(self._steps.finish())
        self._report(at_once=True)

    async def stop(self) -> None:
        """Stop a read that is in progress."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def _read_on(self, cluster: Cluster, within_s: float) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(cluster))
        await asyncio.wait([self._reading], timeout=within_s)

    async def _read(self, cluster: Cluster) -> None:
        read_bytes = 0
        try:
            if not self._has_begun:
                await self._skip_to_end(cluster)
                self._has_begun = True
            while read_bytes < _MOST_BYTES_A_LOOK and (chunk := await self._more(cluster)):
                await self._feed(chunk)
                self._take_note(chunk)
                read_bytes += len(chunk)
                if len(chunk) == _PIECE_BYTES:
                    await self._skip_to_end(cluster)
            self._report()
        except Exception as error:  # whatever it is, the job is waited for without its log
            self._failures += 1
            pause_s = backoff_s(self._failures, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S)
            self._not_before = time.monotonic() + pause_s
            self._warn(
                f"the training's log cannot be followed, and is tried again in {duration(pause_s)}; "
                f"the job is waited for without it: {error or type(error).__name__}"
            )
        else:
            if self._failures:
                self._info("the training's log can be followed again")
            self._failures = 0

    async def _piece(self, cluster: Cluster, offset: int, limit: int) -> bytes:
        path = self._job.log_path
        try:
            async with asyncio.timeout(_READ_WITHIN_S):
                return await cluster.read(path, offset, limit)
        except TimeoutError:
            raise SystemFailure(f"{path} could not be read within {_READ_WITHIN_S:.0f} s") from None

    async def _feed(self, data: bytes, without: Sequence[str] = ()) -> None:
        """Parse `data` in the parser's thread and report what is new, except problems of these kinds."""
        news = await asyncio.get_running_loop().run_in_executor(_PARSER, self._steps.feed, data)
        self._take_in([event for event in news if isinstance(event, Step) or event.kind not in without])

    def _take_note(self, data: bytes) -> None:
        self._offset += len(data)
        self._before = (self._before + data)[-_KNOWN_BYTES:]

    async def _skip_to_end(self, cluster: Cluster) -> None:
        """Skip to near the end of a log if much of it is unread, as after a restart of this process.

        The size is found by reading single bytes, since clusters have no call for it.
        """
        begin = within = self._offset
        beyond = begin + _TAIL_BYTES
        while await self._piece(cluster, beyond, 1):
            within, beyond = beyond, begin + 2 * (beyond - begin)
        if within == begin:
            return
        while beyond - within > _TAIL_BYTES // 4:
            middle = (within + beyond) // 2
            if await self._piece(cluster, middle, 1):
                within = middle
            else:
                beyond = middle
        tail = await self._piece(cluster, beyond - _TAIL_BYTES, _TAIL_BYTES)
        line = tail.find(b"\n") + 1
        self._offset, self._before = beyond - _TAIL_BYTES, b""
        self._take_note(tail)
        if begin == 0:
            self._info(
                f"the first {(self._offset - len(tail) + line) >> 10:,} KiB of the training's log were there "
                f"before and are not shown here: {self._job.log_path}"
            )
        elif not self._has_skipped:
            self._has_skipped = True
            self._warn(
                "the training's log grows by more than is read here, and parts of it are skipped: "
                f"{self._job.log_path}"
            )
        self._steps.skip()
        # A rank that is a step behind looks like a restart to a reader that begins between the two.
        await self._feed(tail[line:], without=_RESTARTS if begin == 0 else ())

    async def _more(self, cluster: Cluster) -> bytes:
        """Return the appended bytes; start from the beginning if the log was replaced."""
        known = self._before
        there = await self._piece(cluster, self._offset - len(known), len(known) + _PIECE_BYTES)
        if there.startswith(known):
            self._was_shorter = False
            return there[len(known) :]
        if self._may_be_late(there, len(known)):
            return b""
        self._warn(_ANOTHER_LOG)
        self._offset = 0
        self._before, self._steps = b"", StepFollower(self._run.recipe.step_line)
        return await self._piece(cluster, 0, _PIECE_BYTES)

    def _may_be_late(self, there: bytes, known_bytes: int) -> bool:
        """Return whether the log may be outdated: it is shorter than before, and was not at the last look.

        A login node's view of a file may lag behind. A log that stays shorter was replaced.
        """
        self._was_shorter = len(there) < known_bytes and not self._was_shorter
        return self._was_shorter

    def _take_in(self, news: Sequence[Step | Problem]) -> None:
        for event in news:
            if isinstance(event, Problem):
                self._report(at_once=True)
                self._warn(f"in the training's log: {event.message}")
                continue
            self._unreported.append(event)
            if event.step_time_s is not None:
                self._recent.append(event.step_time_s)

    def _report(self, *, at_once: bool = False) -> None:
        # A run of minutes is reported at every look, a run of hours about sixty times an hour.
        running_s = 0.0 if self._running_since is None else time.monotonic() - self._running_since
        if not self._unreported:
            return
        if not at_once and time.monotonic() - self._last_report < min(_LONGEST_SILENCE_S, running_s / 60):
            return
        if len(self._unreported) <= _STEPS_ON_LINES_OF_THEIR_OWN:
            for step in self._unreported:
                self._info(self._line(f"step {step.global_step}", step, step.step_time_s))
        else:
            times = [step.step_time_s for step in self._unreported if step.step_time_s is not None]
            first, last = self._unreported[0], self._unreported[-1]
            steps = f"steps {first.global_step}-{last.global_step}"
            self._info(self._line(steps, last, fmean(times) if times else None, mean=True))
        self._unreported.clear()
        self._last_report = time.monotonic()

    def _line(self, steps: str, last: Step, step_time_s: float | None, *, mean: bool = False) -> str:
        remaining = self._run.max_steps - 1 - last.global_step
        parts = [f"{steps} of {self._run.first_step}-{self._run.max_steps - 1}"]
        if step_time_s is not None:
            parts.append(f"{'mean ' if mean else ''}{step_time_s:.4g} s")
        if last.loss is not None:
            parts.append(f"loss {last.loss:.4g}")
        if self._recent and remaining > 0:
            parts.append(f"about {duration(fmean(self._recent) * remaining)} left")
        return " · ".join(parts)
