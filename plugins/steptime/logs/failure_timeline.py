"""Choose the first cause of a failure from the signs of failure in a log, in the order of time.

A failed job's log has many writers: ranks, libraries, the batch script, srun. One of them ends first, the
others follow, and Slurm ends the rest. docs/reference/logs.md describes how the cause is chosen.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

from steptime.logs.excerpts import Excerpt
from steptime.logs.models import Problem

ERROR_LINE = "error_line"
"""Kind of a sign that only quotes a line of severity error."""
PLACES = ("node", "rank", "task", "gpu")
"""Names in a sentence that are filled with all places that printed it."""
_STEPS_SURVIVED = 2
"""Training went on after a sign if this many steps were printed later: other ranks may be one step behind."""
_NEVER = (float("inf"), 0)
_MOST_PLACES = 40
_MOST_SIGNS = 1000
"""Most different signs that are kept for an attempt; a log may print any number of them."""


class Weight(IntEnum):
    """How much a sign of failure explains."""

    EXPLAINS = auto()
    """It explains what was printed before it: a node failed, the kernel killed a process."""
    HAPPENED = auto()
    """Something happened here: an exception, a signal, an error of a library."""
    WARNED = auto()
    """NCCL warned. Many warnings are harmless, so they only explain failures of communication and ends."""
    SEVERE = auto()
    """A line of severity error that has no other meaning here."""
    FOLLOWED = auto()
    """It follows from the end of another process, or did not end the process that printed it."""
    EXITED = auto()
    """A process ended with an exit code; another line may say why."""
    ENDED = auto()
    """Slurm, a person or the training's own limit ended it: whatever comes later follows from that."""


class FailureSign(NamedTuple):
    """A sign of failure in a line of a log."""

    kind: str
    sentence: str
    """What it says; the names `PLACES` in braces are filled by `places`."""
    weight: Weight
    form: int = 0
    """Among signs of one kind and weight, the lowest form explains most."""
    places: Mapping[str, str] = {}
    """Values by the names `PLACES`, as far as the line has them."""
    spoils: bool = False
    """Whether the run's numbers are unusable even if its training is complete."""
    nodes: str = ""
    """Nodes that failed, as Slurm writes them."""
    is_vague: bool = False
    """Whether a warning may say why: communication between ranks failed, or a signal ended a process."""
    excerpt: Excerpt | None = None
    """The lines around it."""
    at: int = 0
    """Its position among the signs of its log. Exceptions are known later than they were printed."""

    @property
    def is_told_at_once(self) -> bool:
        """Whether people who follow a running training are told: not if it may well be harmless."""
        return bool(self.sentence) and self.weight not in (Weight.WARNED, Weight.SEVERE)

    def problem(self) -> Problem:
        """Return the sign as a fatal problem by itself."""
        return _Group(self, (0, 0), 0).problem(fatal=True)


@dataclass
class _Group:
    """Equal signs, apart from the places that printed them."""

    sign: FailureSign
    """The first of them."""
    order: tuple[float, int]
    """Index of the log that has the first, and its position there, which is an order in time."""
    steps: int
    """Number of steps in the attempt when the last was printed."""
    lines: int = 1
    places: dict[str, dict[str, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add_places(self.sign)

    def add_places(self, sign: FailureSign) -> None:
        for name, value in sign.places.items():
            values = self.places.setdefault(name, {})
            if len(values) < _MOST_PLACES:
                values[value] = None

    def problem(self, *, fatal: bool, prefix: str = "") -> Problem:
        sign = self.sign
        shown = dict.fromkeys(PLACES, "?") | {name: ", ".join(self.places[name]) for name in self.places}
        message = sign.sentence.format(**shown)
        named = [name for name in self.places if f"{{{name}}}" in sign.sentence]
        if "rank" in self.places and not {"rank", "task"}.intersection(named):
            ranks = self.places["rank"]
            message += f" (rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)})"
            named.append("rank")
        distinct = max((len(self.places[name]) for name in named), default=1)
        if distinct == 1 and self.lines > 1:
            message += f" (and {self.lines - 1} more such line{'s' if self.lines > 2 else ''})"
        return Problem(kind=sign.kind, message=prefix + message, fatal=fatal, nodes=sign.nodes)


class Timeline:
    """The signs of failure of one attempt in their order, and how many steps were printed after each."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._severe: _Group | None = None
        self._log = self._steps = 0

    def add(self, sign: FailureSign) -> None:
        """Add the next sign."""
        order = (self._log, sign.at)
        key = (sign.kind, sign.weight, sign.form, sign.sentence)
        if sign.weight is Weight.SEVERE:
            # The last line before the first step, but the first one after the last step.
            if self._steps == 0 or self._severe is None or self._is_survived(self._severe):
                self._severe = _Group(sign, order, self._steps)
        elif group := self._groups.get(key):
            group.lines += 1
            group.steps = self._steps
            group.add_places(sign)
        elif len(self._groups) < _MOST_SIGNS:
            self._groups[key] = _Group(sign, order, self._steps)

    def add_step(self) -> None:
        """Note that training printed a new step."""
        self._steps += 1

    def next_log(self) -> None:
        """Note that the signs that follow are from another log of the same attempt."""
        self._log += 1

    def problems(self, *, complete: bool) -> list[tuple[Problem, Excerpt | None]]:
        """Return a problem for each kind of sign, first cause first, with the lines around it.

        Problems that training survived come last and are not fatal. With `complete`, training reached its
        end, and only signs that spoil its numbers are fatal.
        """
        signs = [
            group for group in self._groups.values() if group.sign.sentence and group.sign.kind != ERROR_LINE
        ]
        going = {id(group) for group in signs if self._is_survived(group) and not group.sign.spoils}
        best = self._best_of_each_kind(self._in_order([group for group in signs if id(group) not in going]))
        quoted = self._quoted(best, complete=complete)
        problems = [
            (group.problem(fatal=group.sign.spoils or not complete), group.sign.excerpt)
            for group in self._best_of_each_kind(self._in_order([*best, *quoted]))
            if not (complete and group.sign.weight is Weight.WARNED)
        ]
        kinds = {problem.kind for problem, _ in problems}
        survived = [group for group in signs if id(group) in going and group.sign.weight is not Weight.WARNED]
        remarks = [
            (group.problem(fatal=False, prefix="training went on after this: "), None)
            for group in self._best_of_each_kind(self._in_order(survived))
            if group.sign.kind not in kinds
        ]
        return [*problems, *remarks]

    def _quoted(self, best: Iterable[_Group], *, complete: bool) -> list[_Group]:
        """Return the error lines to quote: waits that timed out; others only if nothing else is known."""
        end = self._first_end()
        known = (Weight.EXPLAINS, Weight.HAPPENED, Weight.WARNED)
        is_known = any(group.sign.weight in known and group.order < end for group in best)
        lines = [group for group in self._groups.values() if group.sign.kind == ERROR_LINE]
        lines += [] if self._severe is None else [self._severe]
        return [
            line
            for line in lines
            if not (complete or self._is_survived(line) or line.order > end)
            and (line.sign.weight is Weight.HAPPENED or not is_known)
        ]

    def _is_survived(self, group: _Group) -> bool:
        return self._steps - group.steps >= _STEPS_SURVIVED

    def _first_end(self) -> tuple[float, int]:
        """Return the position of the first sign that Slurm, a person or a limit ended the training."""
        ends = (
            group.order
            for group in self._groups.values()
            if group.sign.weight is Weight.ENDED and not self._is_survived(group)
        )
        return min(ends, default=_NEVER)

    def _in_order(self, groups: list[_Group]) -> list[_Group]:
        """Sort signs so that the first cause comes first."""
        end = self._first_end()
        is_ended = any(group.sign.weight is Weight.ENDED for group in groups)
        several = len({log for log, _ in (group.order for group in groups)}) > 1
        happened = any(
            group.sign.weight is Weight.HAPPENED and not group.sign.is_vague and group.order < end
            for group in groups
        )

        def key(group: _Group) -> tuple[object, ...]:
            sign = group.sign
            weight = Weight.HAPPENED if sign.weight is Weight.WARNED and not happened else sign.weight
            if is_ended and weight in (Weight.SEVERE, Weight.FOLLOWED):
                weight_order = weight + len(Weight)  # an end that is certain is told before
            else:
                weight_order = int(weight)
            is_late = group.order > end and sign.weight not in (Weight.EXPLAINS, Weight.ENDED)
            # Several logs have no common time: in doubt, what is vague follows from what is not.
            return (
                weight is not Weight.EXPLAINS,
                is_late,
                weight_order,
                several and sign.is_vague,
                group.order,
            )

        return sorted(groups, key=key)

    def _best_of_each_kind(self, groups: Iterable[_Group]) -> list[_Group]:
        """Return the group of each kind that explains most, in the order of the kinds' first groups."""
        kinds: dict[str, _Group] = {}
        end = self._first_end()
        for group in groups:
            best = kinds.setdefault(group.sign.kind, group)
            is_alike = group.sign.weight == best.sign.weight and (group.order > end) == (best.order > end)
            if is_alike and group.sign.form < best.sign.form:
                kinds[group.sign.kind] = group
        return list(kinds.values())


def earlier_problems(attempts: Iterable[Timeline]) -> Iterator[Problem]:
    """Yield a remark for the first cause of each kind in attempts that a later one replaced."""
    kinds: set[str] = set()
    for attempt in attempts:
        for problem, _ in attempt.problems(complete=False):
            if problem.kind not in kinds and problem.kind != ERROR_LINE:
                kinds.add(problem.kind)
                message = f"in an earlier attempt: {problem.message}"
                yield problem.model_copy(update={"message": message, "fatal": False})
