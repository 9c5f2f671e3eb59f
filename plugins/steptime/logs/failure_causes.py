"""Causes of failure: the error messages of training libraries, as listed in `causes.yaml`."""

import math
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from steptime.frozen import Frozen
from steptime.logs.excerpts import Excerpt
from steptime.logs.formats import writer_label
from steptime.logs.models import Problem
from steptime.recipes.config_files import load_yaml_model

_TRACEBACK_KIND = "traceback"
_LONGEST_QUOTE = 300
_REACH_BEFORE, _REACH_BEHIND = 500, 1000
"""Bytes around a word that are searched for its pattern: a line of garbage may be a mebibyte long."""
_MOST_LINES_AWAITED = 20
"""Lines after `Last error:` that are searched for its text: lines of other ranks may come between."""
_HINTS = {
    signal.SIGKILL: ", most often for lack of memory",
    signal.SIGBUS: ", most often as /dev/shm is full",
}


class Cause(Frozen):
    """A known cause of failure: words that occur in its log lines, and patterns that those lines match."""

    kind: str
    words: tuple[str, ...] = ()
    forms: dict[str, str] = Field(default_factory=dict)
    """Regular expressions with the sentence for each, which may use the expression's named groups.

    The first match counts. If several lines match, the one with the earliest expression explains most.
    """
    spoils: bool = False
    """Whether the numbers are unusable even if the training reached its last step."""
    advice: dict[str, str] = Field(default_factory=dict)
    """What may help, by GPU type."""
    hides: tuple[str, ...] = ()
    """Kinds of problems that are consequences of this one and are not reported beside it."""

    def find(self, line: bytes, at: int) -> Problem | None:
        """Return the problem in a log line with one of `words` at byte `at`; None if it fits no pattern."""
        text = line[max(0, at - _REACH_BEFORE) : at + _REACH_BEHIND]
        for place, (form, sentence) in enumerate(self.forms.items()):
            if match := re.search(form.encode(), text):
                values = {name: quote(value or b"") for name, value in match.groupdict().items()}
                nodes = values.get("nodes", "")
                if "code" in values:
                    values["code"] = _exit_code(int(values["code"]))
                return self.problem(sentence.format(**values), place, nodes)
        return None

    def problem(self, message: str, place: int, nodes: str = "") -> Problem:
        """Return a problem of this kind; `place` is the index of the pattern that matched."""
        rank = 100 * _PLACES[self.kind] + place
        return Problem(kind=self.kind, message=message, fatal=self.spoils, nodes=nodes, rank=rank)


class _Causes(Frozen):
    marks: tuple[str, ...]
    causes: tuple[Cause, ...]


_LISTED = load_yaml_model(Path(__file__).with_name("causes.yaml"), _Causes)
_CAUSES, _MARKS = _LISTED.causes, tuple(mark.encode() for mark in _LISTED.marks)
_PLACES = {cause.kind: place for place, cause in enumerate(_CAUSES)}
_WORDS = [(word.encode(), cause) for cause in _CAUSES for word in cause.words]
_TRACEBACK_CAUSE = next(cause for cause in _CAUSES if cause.kind == _TRACEBACK_KIND)
_LAST_ERROR_CAUSE = next(cause for cause in _CAUSES if cause.kind == "nccl_error")

_TRACEBACK = b"Traceback (most recent call last)"
_CHAINED = b"above exception"
_LAST_ERROR = b"Last error:"
_SIGNS = (*(word for word, _ in _WORDS), _TRACEBACK, _CHAINED, _LAST_ERROR, b"Error", b"Exception: ")
FAILURE_WORDS = (*_MARKS, *(word for word in _SIGNS if not any(mark in word for mark in _MARKS)))

_NAME = rb"(?P<name>[A-Za-z_][\w.]{0,100}(?:Error|Exception)|Exception)"
_EXCEPTION = re.compile(rb"(?:^|[\s\]:>])" + _NAME + rb"(?:: ?(?P<text>.{0,300})|\s*$)")
_SOURCE_LINE = re.compile(rb"(?:^|[\]:>] ?) {4}")
_OF_A_RANK = re.compile(rb"call last\): \(RANK \d+\)")
"""A traceback that explains the exception before it, as torch.distributed.checkpoint prints it."""
_FOLLOWS = re.compile(
    rb"^(?:[\w.]*\.)?(?:Dist\w*|ConnectionReset|BrokenPipe|EOF|ChildProcess|ProcessRaised|ProcessExited)"
    rb"(?:Error|Exception)$"
)
"""Exceptions that ranks raise because another rank has gone."""


def hidden_by(kinds: Iterable[str]) -> set[str]:
    """Return the kinds of problems that need no report beside these kinds, as they are only consequences."""
    present = set(kinds)
    return {kind for cause in _CAUSES if cause.kind in present for kind in cause.hides}


def advice(kind: str, gpu_type: str | None) -> str:
    """Return advice in brackets for a kind of problem on a GPU type; empty if there is none."""
    text = _CAUSES[_PLACES[kind]].advice.get(gpu_type or "") if kind in _PLACES else None
    return f" ({text})" if text else ""


class _Trace:
    """A traceback, or several chained ones, as far as one process has printed it."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the traceback's exception is still to come."""
        self.is_chained = False
        """Whether the next traceback belongs to this one."""
        self.is_explained = False
        """Whether an exception of the chain was a known cause."""
        self.last: Problem | None = None
        """The last exception so far."""


class Failures:
    """Finds signs of failure in the lines of a log.

    Of chained exceptions only the last one is reported.
    """

    def __init__(self) -> None:
        self.around = Excerpt()
        """The lines around the one that is read next."""
        self.excerpts: dict[str, tuple[int, Excerpt]] = {}
        """By kind: the lowest `Problem.rank` of a sign, and the lines around its first occurrence."""
        self._traces: defaultdict[bytes | None, _Trace] = defaultdict(_Trace)
        self._awaiting: bytes | None = None
        """Label of the writer whose next line is the text of `Last error:`."""
        self._awaited_lines = 0

    @property
    def awaits(self) -> bool:
        """Whether the next line continues a sign of failure and must be passed to `follow_up`."""
        return self._awaited_lines > 0

    def read(self, line: bytes) -> list[Problem]:
        """Read the next line of a log; return the known causes of failure in it.

        If the line begins an unrelated traceback, the exception held back for the previous one comes first.
        """
        found = [(word, cause) for word, cause in _WORDS if word in line]
        read = [problem for word, cause in found if (problem := cause.find(line, line.find(word)))]
        problems = list({problem.kind: problem for problem in reversed(read)}.values())[::-1]  # each once
        for problem in problems:
            self._quote_around(problem)
        if _LAST_ERROR in line:
            self._awaiting, self._awaited_lines = writer_label(line), _MOST_LINES_AWAITED
        return [*self._read_traceback(line, is_known=bool(problems)), *problems]

    def _read_traceback(self, line: bytes, *, is_known: bool) -> Iterator[Problem]:
        label = writer_label(line)
        begins = _TRACEBACK in line
        if not begins and label not in self._traces:
            return
        trace = self._traces[label]
        if _CHAINED in line:
            trace.is_chained = True
            return
        if begins:
            if not trace.is_chained and not _OF_A_RANK.search(line):
                yield from self._flush(label)
            self._traces[label].is_open, self._traces[label].is_chained = True, False
            return
        exception = _EXCEPTION.search(line) if trace.is_open and not _SOURCE_LINE.match(line) else None
        if exception is None:
            return
        trace.is_open = False
        trace.is_explained |= is_known
        # Torchrun's own follows from a rank that failed, which has a line of its own.
        if trace.is_explained or exception["name"].endswith(b"ChildFailedError"):
            trace.last = None
        else:
            text = b": " + exception["text"] if exception["text"] else b""
            place = 1 if _FOLLOWS.match(exception["name"]) else 0
            trace.last = _traceback(quote(exception["name"] + text), place)
            self._quote_around(trace.last)

    def _quote_around(self, problem: Problem) -> None:
        rank, _ = self.excerpts.get(problem.kind, (math.inf, None))
        if problem.rank < rank:
            self.excerpts[problem.kind] = problem.rank, self.around

    def follow_up(self, line: bytes) -> list[Problem]:
        """Return the NCCL error in a line that follows `Last error:`; empty if the line does not have it."""
        label = writer_label(line)
        text = line.strip() if label is None else line.partition(b": ")[2].strip()
        self._awaited_lines -= 1
        if label != self._awaiting or not text:
            return []
        self._awaited_lines = 0
        problem = _LAST_ERROR_CAUSE.problem(f"NCCL: {quote(text)}", 0)
        self._quote_around(problem)
        return [problem]

    def flush(self) -> list[Problem]:
        """Return the exceptions that were held back in case chained ones follow, one for each writer."""
        return [problem for label in [*self._traces] for problem in self._flush(label)]

    def finish(self) -> list[Problem]:
        """Return the remaining problems at the end of the log.

        Among them are tracebacks whose exception never came or was not recognized.
        """
        problems = []
        for label in [*self._traces]:
            if self._traces[label].is_open:
                problems.append(_traceback("its last line was not recognised", 2))
            problems += self._flush(label)
        return problems

    def _flush(self, label: bytes | None) -> list[Problem]:
        trace = self._traces[label]
        if not trace.is_open:
            del self._traces[label]
        last, trace.last = trace.last, None
        return [] if last is None else [last]


def _traceback(what: str, place: int) -> Problem:
    return _TRACEBACK_CAUSE.problem(f"Python traceback: {what}", place)


def _exit_code(code: int) -> str:
    """Describe an exit code and its signal: negative in Python, above 128 in a shell."""
    with suppress(ValueError):
        ended_by = signal.Signals(-code if code < 0 else code - 128)
        return f"{code} ({ended_by.name}{_HINTS.get(ended_by, '')})"
    return str(code)


def quote(text: bytes) -> str:
    """Return text of a log, cut to 300 bytes, as valid and printable text."""
    decoded = text[:_LONGEST_QUOTE].decode(errors="replace").strip()
    return "".join(character if character.isprintable() else " " for character in decoded)
