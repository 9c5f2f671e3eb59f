"""Find the new steps and problems in the growing log of a job."""

from steptime.logs.attempts import Attempts
from steptime.logs.completeness import not_finite
from steptime.logs.events import OF_THE_LOG, Event, LogEvents
from steptime.logs.models import Problem, Step
from steptime.logs.shapes import StepsPrinted


class StepFollower:
    """Returns what is new in a growing log, once: steps as they come, the first sign of each kind of trouble.

    Feed it the log's bytes in order, in pieces of any size. A step that several ranks print, or that a bar
    draws again, is returned once; after a restart, which is returned as a problem, the steps come again.
    """

    def __init__(self) -> None:
        self._events = LogEvents()
        self._attempts = Attempts()
        self._told: set[str] = set()

    def feed(self, data: bytes) -> list[Step | Problem]:
        """Return the steps and problems of the lines that end in `data`, in their order."""
        news = [news for event in self._events.feed(data) for news in self._news(event)]
        self._attempts.forget_old()
        return news

    def skip(self) -> None:
        """Continue at a later place in the log, at the beginning of a line."""
        self._events = LogEvents()

    def finish(self) -> list[Step | Problem]:
        """Return what is new in a last line without an end; called when the job has ended."""
        return [news for event in self._events.finish() for news in self._news(event)]

    def _news(self, event: Event) -> list[Step | Problem]:
        if isinstance(event, Problem) and event.kind not in OF_THE_LOG:
            return self._once(event)
        return self._steps(event) if isinstance(event, StepsPrinted) else []

    def _steps(self, event: StepsPrinted) -> list[Step | Problem]:
        news = self._attempts.add(event)
        about = {event.numbers[0]: event.not_finite} if event.not_finite else {}
        broken = [one for problem in not_finite(about) for one in self._once(problem)]
        at = len(news) - 1 if news else 0
        return [*news[:at], *broken, *news[at:]]

    def _once(self, problem: Problem) -> list[Step | Problem]:
        if problem.kind in self._told:
            return []
        self._told.add(problem.kind)
        return [problem]
