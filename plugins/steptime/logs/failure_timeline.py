"""Choose the first cause of a failure from the signs of failure in a log, in the order of time.

A failed job's log has many writers: ranks, libraries, the batch script, srun. One of them ends first, the
others follow, and Slurm ends the rest. docs/reference/logs.md describes how the cause is chosen.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from typing import NamedTuple

from steptime.logs.excerpts import Excerpt
from steptime.logs.training_log import Problem

ERROR_LINE = "error_line"
"""Kind of a sign that only quotes a line of severity error."""
PLACES = ("node", "rank", "task", "gpu")
"""Names in a sentence that are filled with all places that printed it; those it lacks are put behind it."""
_STEPS_SURVIVED = 2
"""Training went on after a sign if this many steps were printed later: other ranks may be one step behind."""
_RANKS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
"""A rank or a range of them; a longer number in a log is none, and its range would fill the memory."""
_MOST_LATE_STEPS = 100
"""Step lines that Python holds back at most, as they are of 80 bytes or more: it writes 8 KiB at a time."""
_NEVER = (float("inf"), 0)
_PASSAGE_BYTES = 1000
"""Error lines that are at most this far apart belong together."""
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
    COMPLAINED = auto()
    """A line without a severity that says that something failed, as programs print before they exit."""
    FOLLOWED = auto()
    """It follows from the end of another process, or did not end the process that printed it."""
    EXITED = auto()
    """A process ended with an exit code; another line may say why."""
    ENDED = auto()
    """Slurm, a person or the training's own limit ended it: whatever comes later follows from that."""


_ERROR_LINES = (Weight.SEVERE, Weight.COMPLAINED)
"""Weights of lines that are only quoted, and only if nothing else explains the failure."""


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
    is_killed: bool = False
    """Whether SIGKILL ended a process, as the kernel's for lack of memory."""
    excerpt: Excerpt | None = None
    """The lines around it."""
    at: int = 0
    """Position of its line's end in the log, in bytes. Exceptions are known later than they were printed."""

    @property
    def is_told_at_once(self) -> bool:
        """Whether people who follow a running training are told: not if it may well be harmless."""
        return bool(self.sentence) and self.weight not in (Weight.WARNED, *_ERROR_LINES)

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

    def problem(
        self, *, fatal: bool, prefix: str = "", node_of_rank: Mapping[str, str] | None = None
    ) -> Problem:
        sign = self.sign
        shown = dict.fromkeys(PLACES, "?") | {name: ", ".join(self.places[name]) for name in self.places}
        named = [name for name in self.places if f"{{{name}}}" in sign.sentence]
        message = sign.sentence.format(**shown) + self._where(named, shown, node_of_rank or {})
        distinct = max((len(values) for values in self.places.values()), default=1)
        if distinct == 1 and self.lines > 1:
            message += f" (and {self.lines - 1} more such line{'s' if self.lines > 2 else ''})"
        return Problem(kind=sign.kind, message=prefix + message, fatal=fatal, nodes=sign.nodes)

    def _where(self, named: list[str], shown: Mapping[str, str], node_of_rank: Mapping[str, str]) -> str:
        """Return the places that the sentence does not name: ` (ranks 2, 5 on node3)`."""
        where = []
        ranks = self.places.get("rank", {})
        if ranks and not {"rank", "task"}.intersection(named):
            where.append(f"rank{'s' if len(ranks) > 1 else ''} {shown['rank']}")
        if "gpu" in self.places and "gpu" not in named:
            where.append(f"GPU {shown['gpu']}")
        nodes = self.places.get("node") or dict.fromkeys(node_of_rank.get(rank, "") for rank in ranks)
        if nodes and "" not in nodes and not {"node", "nodes"}.intersection(named):
            where = [f"{', '.join(where)} on {', '.join(nodes)}".strip()]
        return f" ({', '.join(where)})" if where else ""


def _ranks(groups: Iterable[_Group]) -> set[int]:
    """Return the ranks that printed these signs, or that they name: `3`, or srun's `0-2,7`."""
    named = (text for group in groups for name in ("rank", "task") for text in group.places.get(name, ()))
    bounds = (_RANKS.fullmatch(part) for text in named for part in text.split(","))
    return {rank for match in bounds if match for rank in range(int(match[1]), int(match[2] or match[1]) + 1)}


class Timeline:
    """The signs of failure of one attempt in their order, and how many steps were printed after each."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._lines: dict[Weight, _Group] = {}
        """The line to quote, of those that are only quoted."""
        self._last_line = dict.fromkeys(_ERROR_LINES, _NEVER)
        """Position of the last of these lines."""
        self._node_of_rank: dict[str, str] = {}
        self._log = self._steps = 0

    def add(self, sign: FailureSign) -> None:
        """Add the next sign."""
        order = (self._log, sign.at)
        if "rank" in sign.places and "node" in sign.places:
            self._node_of_rank.setdefault(sign.places["rank"], sign.places["node"])
        key = (sign.kind, sign.weight, sign.form, sign.sentence)
        if sign.weight in _ERROR_LINES:
            self._add_line(sign, order)
        elif group := self._groups.get(key):
            group.lines += 1
            group.steps = self._steps
            group.add_places(sign)
        elif len(self._groups) < _MOST_SIGNS:
            self._groups[key] = _Group(sign, order, self._steps)

    def _add_line(self, sign: FailureSign, order: tuple[float, int]) -> None:
        """Keep the first line after the last step; before the first step, the first one of the last passage.

        Programs that start print errors that do no harm. The one that ends them is the last, and is often
        explained by lines right before it.
        """
        kept, last = self._lines.get(sign.weight), self._last_line[sign.weight]
        self._last_line[sign.weight] = order
        is_new_passage = order[0] != last[0] or order[1] > last[1] + _PASSAGE_BYTES
        if kept is None or self._is_survived(kept) or (self._steps == 0 and is_new_passage):
            self._lines[sign.weight] = _Group(sign, order, self._steps)

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
        going -= self._before_late_lines(signs, going)
        ended = self._with_nodes([group for group in signs if id(group) not in going])
        best = self._best_of_each_kind(self._in_order(ended))
        quoted = self._quoted(best, complete=complete)
        nodes = self._node_of_rank
        problems = [
            (
                group.problem(fatal=group.sign.spoils or not complete, node_of_rank=nodes),
                group.sign.excerpt,
            )
            for group in self._best_of_each_kind(self._in_order([*best, *quoted]))
            if not (complete and group.sign.weight is Weight.WARNED)
        ]
        kinds = {problem.kind for problem, _ in problems}
        survived = [group for group in signs if id(group) in going and group.sign.weight is not Weight.WARNED]
        remarks = [
            (group.problem(fatal=False, prefix="training went on after this: ", node_of_rank=nodes), None)
            for group in self._best_of_each_kind(self._in_order(survived))
            if group.sign.kind not in kinds
        ]
        return [*problems, *remarks]

    def _before_late_lines(self, signs: list[_Group], going: set[int]) -> set[int]:
        """Return the ids of exceptions in `going` whose rank then ended without another word.

        Rank 0 may print its last step lines afterwards, as Python holds back what it writes to a file.
        """
        rest = [group for group in signs if id(group) not in going]
        exited = _ranks(group for group in rest if group.sign.weight is Weight.EXITED)
        silent = exited - _ranks(group for group in rest if group.sign.weight is not Weight.EXITED)
        return {
            id(group)
            for group in signs
            if id(group) in going
            and group.sign.weight is Weight.HAPPENED
            and self._steps - group.steps <= _MOST_LATE_STEPS
            and not silent.isdisjoint(_ranks([group]))
        }

    def _with_nodes(self, groups: list[_Group]) -> list[_Group]:
        """Add the nodes of processes that were killed to signs that explain this and have no place."""
        killed = {
            node: None for group in groups if group.sign.is_killed for node in group.places.get("node", ())
        }
        return [
            replace(group, places={"node": killed})
            if killed and group.sign.weight is Weight.EXPLAINS and not (group.places or group.sign.nodes)
            else group
            for group in groups
        ]

    def _quoted(self, best: Iterable[_Group], *, complete: bool) -> list[_Group]:
        """Return the error lines to quote: waits that timed out; others only if nothing else is known."""
        end = self._first_end()
        known = (Weight.EXPLAINS, Weight.HAPPENED, Weight.WARNED)
        weights = {group.sign.weight for group in best if group.order < end}
        timed_out = [group for group in self._groups.values() if group.sign.kind == ERROR_LINE]
        lines = [] if weights.intersection(known) else [*self._lines.values()]
        if Weight.SEVERE in self._lines or weights != {Weight.EXITED}:
            lines = [line for line in lines if line.sign.weight is Weight.SEVERE]
        return [
            line
            for line in (*timed_out, *lines)
            if not (complete or self._is_survived(line) or line.order > end)
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
        # An end that nothing came before is certain, and is told before lines that may mean nothing.
        is_ended = end != _NEVER and not any(
            group.sign.weight in (Weight.HAPPENED, Weight.EXITED) and group.order < end for group in groups
        )
        several = len({log for log, _ in (group.order for group in groups)}) > 1
        happened = any(
            group.sign.weight is Weight.HAPPENED and not group.sign.is_vague and group.order < end
            for group in groups
        )

        followed = _ranks(group for group in groups if group.sign.weight is Weight.FOLLOWED)

        def key(group: _Group) -> tuple[object, ...]:
            sign = group.sign
            weight = Weight.HAPPENED if sign.weight is Weight.WARNED and not happened else sign.weight
            # A rank that ended without a word comes before what only other ranks say that they lost.
            ranks = _ranks([group]) if followed and weight is Weight.EXITED else set()
            is_silent = bool(ranks) and followed.isdisjoint(ranks)
            if is_silent:
                weight = Weight.FOLLOWED
            if is_ended and weight in (*_ERROR_LINES, Weight.FOLLOWED):
                weight_order = weight + len(Weight)
            else:
                weight_order = int(weight)
            is_late = group.order > end and sign.weight not in (Weight.EXPLAINS, Weight.ENDED)
            # Several logs have no common time: in doubt, what is vague follows from what is not.
            return (
                weight is not Weight.EXPLAINS,
                is_late,
                weight_order,
                not is_silent,
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
            is_alike = group.sign.weight is best.sign.weight and (
                group.sign.weight is Weight.ENDED or (group.order > end) == (best.order > end)
            )
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
