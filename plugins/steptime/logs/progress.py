"""Following the log of a job that still runs."""

from steptime.logs.attempts import Attempts, Restart
from steptime.logs.causes import Symptom
from steptime.logs.completeness import not_finite, restarted
from steptime.logs.events import Event, LogEvents
from steptime.logs.models import Problem, Step
from steptime.logs.shapes import StepsPrinted


class StepFollower:
    """Gives what is new in a growing log, once: steps as they come, the first sign of each kind of trouble.

    Feed it the log's bytes in order, in pieces of any size. A step that several ranks print, or that a bar
    draws again, is given once; after a restart, which is given as a problem, the steps are given again.
    """

    def __init__(self) -> None:
        self._events = LogEvents()
        self._attempts = Attempts()
        self._given: set[str] = set()

    def feed(self, data: bytes) -> list[Step | Problem]:
        """Steps and problems of the lines that end in `data`, in their order."""
        return [news for event in self._events.feed(data) for news in self._news(event)]

    def finish(self) -> list[Step | Problem]:
        """What is new in a last line without an end; call it when the job has ended."""
        return [news for event in self._events.finish() for news in self._news(event)]

    def _news(self, event: Event) -> list[Step | Problem]:
        if isinstance(event, Symptom):
            return self._once(Problem(kind=event.kind, message=event.message, fatal=event.certain))
        return self._steps(event) if isinstance(event, StepsPrinted) else []

    def _steps(self, event: StepsPrinted) -> list[Step | Problem]:
        news = [restarted(new) if isinstance(new, Restart) else new for new in self._attempts.add(event)]
        broken = [
            news
            for problem in not_finite([event.broken] if event.broken else [])
            for news in self._once(problem)
        ]
        at = len(news) - 1 if news else 0
        return [*news[:at], *broken, *news[at:]]

    def _once(self, problem: Problem) -> list[Step | Problem]:
        if problem.kind in self._given:
            return []
        self._given.add(problem.kind)
        return [problem]
