"""Find signs of failure in the lines of a log: tracebacks, errors listed in `causes.yaml`, error lines."""

import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import Field

from steptime.frozen import Frozen
from steptime.logs.excerpts import Excerpt
from steptime.logs.failure_timeline import ERROR_LINE, PLACES, FailureSign, Weight
from steptime.logs.formats import writer_label
from steptime.recipes.config_files import load_yaml_model

_TRACEBACK_KIND, _PYTHON = "traceback", "Python traceback:"
_LONGEST_QUOTE = 300
_REACH_BEFORE, _REACH_BEHIND = 500, 1000
"""Bytes around a word that are searched for its pattern: a line of garbage may be a mebibyte long."""
_MOST_LINES_AWAITED = 20
"""Lines after `Last error:` that are searched for its text: lines of other ranks may come between."""
_HINTS = {
    signal.SIGHUP: ", as when a terminal is closed",
    signal.SIGKILL: ", most often for lack of memory",
    signal.SIGBUS: ", most often as /dev/shm is full",
}
_ENDED_BY_ITSELF = {signal.SIGABRT, signal.SIGPIPE, signal.SIGTERM}
"""Signals that a process ends itself with, or its launcher: another line says why."""
_SIGNAL_OF_NAME = {signal.strsignal(number): number for number in signal.Signals}
_SIGNAL_HINTS = {"Killed": "Killed (SIGKILL, most often for lack of memory)"}


class Cause(Frozen):
    """A known cause of failure.

    A log line is a sign of it if it has one of `words` and matches one of `forms`.
    """

    kind: str
    weight: str = "happened"
    """A name of `Weight`: how much the cause explains."""
    words: tuple[str, ...] = ()
    forms: dict[str, str] = Field(default_factory=dict)
    """Regular expressions with the sentence for each, which may use the expression's named groups.

    The first match counts. If several lines match, the one with the earliest expression explains most. An
    empty sentence is not reported.
    """
    spoils: bool = False
    """Whether the numbers are unusable even if the training reached its last step."""
    is_vague: bool = False
    """Whether a warning of NCCL may say why it happened."""
    advice: dict[str, str] = Field(default_factory=dict)
    """What may help, by GPU type."""
    hides: tuple[str, ...] = ()
    """Kinds of problems that are consequences of this one and are not reported beside it."""

    def find(self, line: bytes, at: int) -> FailureSign | None:
        """Return the sign in a log line with one of `words` at byte `at`; None if it fits no pattern."""
        text = line[max(0, at - _REACH_BEFORE) : at + _REACH_BEHIND]
        for index, (form, sentence) in enumerate(self.forms.items()):
            if match := re.search(form.encode(), text):
                values = {name: quote(value or b"") for name, value in match.groupdict().items()}
                return self.sign(sentence, index, values)
        return None

    def sign(self, sentence: str, form: int, values: dict[str, str]) -> FailureSign:
        """Return a sign of this cause; `form` is the index of the pattern that matched."""
        weight = Weight[self.weight.upper()]
        ended_by = _ended_by(values)
        if weight is Weight.EXITED and ended_by and ended_by not in _ENDED_BY_ITSELF:
            weight = Weight.HAPPENED
        if "code" in values:
            values["code"] = _exit_code(int(values["code"]))
        if "number" in values:
            values["number"] = _exit_code(-int(values["number"])).removeprefix("-")
        how = values.get("how", "")
        values["how"] = _SIGNAL_HINTS.get(how, f" {how}" if how.startswith("for ") else how)
        escaped = {name: _literal(value) for name, value in values.items()}
        return FailureSign(
            self.kind,
            sentence.format_map(escaped | {name: f"{{{name}}}" for name in PLACES}),
            weight,
            form,
            {name: values[name] for name in PLACES if values.get(name)},
            self.spoils,
            values.get("nodes", ""),
            self.is_vague,
            is_killed=ended_by is signal.SIGKILL,
        )


class _Causes(Frozen):
    marks: tuple[str, ...]
    causes: tuple[Cause, ...]


_LISTED = load_yaml_model(Path(__file__).with_name("causes.yaml"), _Causes)
_CAUSES, _MARKS = _LISTED.causes, tuple(mark.encode() for mark in _LISTED.marks)
_WORDS = [(word.encode(), cause) for cause in _CAUSES for word in cause.words]
_LAST_ERROR_CAUSE = next(cause for cause in _CAUSES if cause.kind == "nccl_error")

_TRACEBACK = b"Traceback (most recent call last)"
_CHAINED = b"above exception"
_ASIDE = (b"Exception in thread ", b"Exception ignored in")
"""Lines before the traceback of an exception that does not end its process."""
_LAST_ERROR = b"Last error:"
_SIGNS = (*(word for word, _ in _WORDS), _TRACEBACK, _CHAINED, *_ASIDE, _LAST_ERROR, b"Error", b"Exception: ")
FAILURE_WORDS = (*_MARKS, *(word for word in _SIGNS if not any(mark in word for mark in _MARKS)))

_NAME = (
    rb"(?P<name>[A-Za-z_][\w.]{0,100}(?:Error|Exception)|Exception"
    rb"|(?:[a-z_]\w{0,50}\.){1,8}[A-Z]\w{1,50}(?=:))"
)
_EXCEPTION = re.compile(rb"(?:^|[\s\]:>)])" + _NAME + rb"(?:: ?(?P<text>.{0,300})|\s*$)")
_SOURCE_LINE = re.compile(rb"(?:^|[\]:>)] ?) {4}")
_OF_A_RANK = re.compile(rb"call last\): \(RANK (\d+)\)")
"""A traceback that explains the exception before it, as torch.distributed.checkpoint prints it."""
_FOLLOWS = re.compile(
    rb"^(?:[\w.]*\.)?(?!Dist\w+: (?:The client socket has (?:timed out|failed to)|Timed out after))"
    rb"(?:Dist\w*|ConnectionReset|BrokenPipe|EOF"
    rb"|ChildProcess|ProcessRaised|ProcessExited|CalledProcess|RendezvousClosed"
    rb"|RayActor|Actor(?:Died|Unavailable)|WorkerCrashed|NodeDied|LocalRayletDied|OwnerDied|ObjectLost)"
    rb"(?:Error|Exception)(?:: |$)"
    rb"|[Cc]onnection (?:was |has been )?(?:closed|reset|refused) by (?:remote )?peer"
    rb"|remote process exited|recvValue failed|failed to recv, got 0 bytes"
    rb"|[Rr]ecv failed while polling|Error encountered progressing operation|Failed to execute operation"
    rb"|unexpected pos \d+ vs \d+"
)
"""Exceptions that ranks and launchers raise because another process has gone, or a write failed before.

A client that never reached the store says itself what happened.
"""
_OF_COMMUNICATION = re.compile(rb"(?i)nccl|ProcessGroup|Dist\w{1,20}Error|collective")
_LABELLED = re.compile(rb"\[rank(?P<rank>\d{1,9})\]:\[E[^\n]*NCCL error[^\n]*\n(?:[^\n]*\n)?[^\n]*\Z")
"""The beginning of a message of torch's, of which only the first line has a label, up to `Last error:`."""
_RAISED_BY_NCCL = re.compile(rb"NCCL error in|nccl\w+Error:|ncclInvalid\w+:|Last error:|Traceback")
"""Lines that may come between `Last error:` and its text if ranks without labels print at once."""

_WARNING = re.compile(rb"(?<!NCCL )\bWARN(?:ING)?\b|\b[Ww]arning: |\b[Rr]etrying\b")
_SEVERE = re.compile(
    rb"(?:^|[\s\[\]|:(-])(?:ERROR|FATAL|CRITICAL|[Ee]rror|[Ff]atal(?: error)?|FATAL ERROR)(?:\]|\)|:| -| \|)"
    rb"|(?:^|\d\d:\d\d[\d:.,]{0,16}Z?\s+)(?:ERROR|FATAL|CRITICAL)\s"
    rb"|(?:^|[\s\[])[EF]\d{3,4} \d\d:\d\d:\d\d|\b(?:[Cc]heck|[Aa]ssertion|[Ii]nitialization|[Ii]nit) failed\b"
    rb"|: (?:command not found|Permission denied|No such file or directory)\s*$|\bnon-zero status: \d"
    rb"|: [Ee]rror [a-z]|\b(?:died|[Tt]erminat(?:ed|ion)) (?:or was killed|(?:is )?unexpected(?:ly)?)\b"
    rb"|\bretry count exceeded\b"
    rb"|(?:^|[\]:)] ?)(?:[A-Za-z_]\w{0,50}\.){0,8}[A-Z]\w{1,50}(?:Error|Exception): "
)
_COMPLAINT = re.compile(
    rb"(?i)\b(?:failed|fault|unable to|can ?not|can't|could ?n[o']t|denied|refused|not found|no such"
    rb"|errors? (?:occurred|while|during))\b"
)
_TIMED_OUT = re.compile(rb"\b(?:timed out|[Tt]imeout)\b.{0,200}\bfailed\b|\)? timeout,")
"""A wait of one rank for others that failed, which is told in the order in time."""
_MILD = re.compile(
    rb"\bINFO\b|\bDEBUG\b|\bWARN(?:ING)?\b|\bW\d{4} |Warning\b|\b(?:no|0) errors?\b|error: *$"
    rb"|^\s*(?:raise|except|File) |pyxis: |spank|steptime\."
)
_PLACE = re.compile(rb"\bon rank (?P<of>\d{1,9})\b|\bRank (?P<rank>\d{1,9}), node (?P<node>[^\s,]{1,255})")
"""Where it happened, as Megatron says of a number that is NaN."""
_LAUNCHERS_TABLE = re.compile(
    rb"host +: (?P<node>\S{1,255})\s{1,300}[^\n]{0,200}\brank +: (?P<rank>\d{1,9}) [^\n]{0,300}\n"
    rb"(?:[^\n]{0,300}\n){0,2}[^\n]{0,300}\Z"
)
"""The lines of torchrun's table of failures before those of the exit code and the traceback."""
_IN_LAUNCHERS_TABLE = (b"exitcode  :", b"traceback :")
_OF_MPI = re.compile(
    rb"PID \d+ RUNNING AT (?P<node>\S{1,255})\s*\n(?:[^\n]{0,200}\n){1,5}[^\n]{0,200}\Z"
    rb"|rank (?P<rank>\d{1,9}) [^\n]{0,100}on node (?P<there>\S{1,255}) exited on\s*\n[^\n]{0,200}\Z"
    rb"|Process name: \[\[\d+,\d+\],(?P<of>\d{1,9})\]\s*\n[^\n]{0,200}\Z"
)
"""The lines in which launchers of MPI name a process, up to how it ended: MPICH's and Open MPI's."""
_ENDS_OF_MPI = (b"signal ", b"Exit code: ")
_OF_LATER_FAILURE = re.compile(
    rb"(?:\A|\n)(?![^\n]{0,200}Root Cause)[^\n]{0,300}\n[^\n]{0,200}\[\d{1,6}\]:\s*\n"
    rb"(?:[^\n]{0,300}\n){3,5}[^\n]{0,300}\Z"
)
"""The same lines of a rank that is not the table's root cause: most often torchrun ended it itself."""
_LAST_FORM = 1000
"""A form after all that `causes.yaml` has of a kind."""
_RAYS_ACTOR = re.compile(rb"\bip: (?P<node>[\d.]{7,15})\s*\n(?:[^\n]*\n)?[^\n]*\Z")
"""What Ray says of an actor, before the lines that say why it died."""
_OF_AN_ACTOR = re.compile(rb"\b[Tt]he actor(?:'s node was| (?:is dead|died) because) .{1,300}")
"""Why an actor of Ray's died, in the lines behind the exception."""
_RANK_IN_TEXT = re.compile(rb"\b[Rr]ank(?: |[:=] ?| = )(\d{1,9})\b")
_NCCLS_PREFIX = re.compile(rb"(?P<node>[\w.-]{1,255}):\d+:\d+ \[(?P<gpu>\d+)\]")
_NODE_OF_PREFIX = re.compile(
    rb"(?:\(\w{1,100} pid=\d{1,9}[^)]{0,100}?\bip=|(?=(?:\d{1,3}\.){3}\d{1,3}: ))([\d.]{7,15})"
)
"""Addresses of nodes in the prefixes of Ray and pdsh."""
_NODE_OF_LABEL = re.compile(rb"\bip=([\d.]{7,15})")
_BY_SLURM = (b"srun: ", b"slurmstepd", b"salloc: ", b"sbatch: ")
_LONG_NAME = re.compile(rb"\b(?=[a-z]*\d)[0-9a-f]{20,}\b")
_DATE = re.compile(rb"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_LINES_BEFORE_END = 5
_SILENT_S, _ZONE_S, _LARGEST_ZONE_S = 600, 900, 14 * 3600


def _silence(line: bytes, before: bytes) -> str:
    """Say for how long nothing was printed before an end; empty if that was not long.

    Containers and Slurm may write times of different time zones, which are quarters of an hour apart.
    """
    at = _DATE.search(line)
    dates = _DATE.findall(b"\n".join(before.splitlines()[-_LINES_BEFORE_END - 1 : -1]))
    if at is None or not dates:
        return ""
    with suppress(ValueError):
        begin, end = (datetime.fromisoformat(date.decode()) for date in (dates[-1], at[0]))
        silent_s = (end - begin).total_seconds()
        is_other_zone = silent_s < _LARGEST_ZONE_S and abs((silent_s + 120) % _ZONE_S - 120) < 120
        if silent_s > _SILENT_S and not is_other_zone:
            return f", after {round(silent_s / 60)} min without a line"
    return ""


def hidden_by(kinds: Iterable[str]) -> set[str]:
    """Return the kinds of problems that need no report beside these kinds, as they are only consequences."""
    present = set(kinds)
    return {kind for cause in _CAUSES if cause.kind in present for kind in cause.hides}


def advice(kind: str, gpu_type: str | None) -> str:
    """Return advice in brackets for a kind of problem on a GPU type; empty if there is none."""
    of_kind = (cause.advice for cause in _CAUSES if cause.kind == kind)
    text = next((texts[gpu_type] for texts in of_kind if gpu_type in texts), None)
    return f" ({text})" if text else ""


@dataclass
class _Awaited:
    """A line `Last error:` of which the text is still to come."""

    label: bytes | None
    rank: bytes | None
    """The rank that the lines before name, if the writer has no label."""
    around: Excerpt
    position: int
    lines: int = _MOST_LINES_AWAITED
    """The number of lines in which the text may come."""


class _Trace:
    """A traceback, or several chained ones, as far as one process has printed it."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the traceback's exception is still to come."""
        self.is_chained = False
        """Whether the next traceback belongs to this one."""
        self.is_explained = False
        """Whether an exception of the chain was a known cause."""
        self.is_aside = False
        """Whether the exception did not end its process, such as that of a thread."""
        self.first = b""
        """The first exception of a chain."""
        self.of_rank: bytes | None = None
        """The rank that a traceback names which several ranks' exceptions are told in."""
        self.last: FailureSign | None = None
        """The last exception so far."""
        self.places: dict[str, str] = {}
        """Where the line says that it happened with which the traceback begins."""


class Failures:
    """Finds signs of failure in the lines of a log.

    Of chained exceptions only the last one is reported.
    """

    def __init__(self) -> None:
        self.around = Excerpt()
        """The lines around the one that is read next."""
        self.open_excerpts: list[Excerpt] = []
        """Excerpts of signs that the log's next lines continue."""
        self.position = 0
        """Position of the end of the line that is read next, in bytes."""
        self._traces: defaultdict[bytes | None, _Trace] = defaultdict(_Trace)
        self._asides: set[bytes | None] = set()
        """Writers whose next traceback does not end their process."""
        self._awaited: list[_Awaited] = []

    @property
    def awaits(self) -> bool:
        """Whether the next line continues a sign of failure and must be passed to `follow_up`."""
        return bool(self._awaited)

    @property
    def is_idle(self) -> bool:
        """Whether no sign of failure is held back or may be continued by the next lines."""
        return not (self._awaited or self._traces)

    def extend_excerpts(self, block: bytes) -> None:
        """Append the beginning of the log's next block to the excerpts that end with the previous one."""
        for excerpt in self.open_excerpts:
            excerpt.extend(block)
        self.open_excerpts = [excerpt for excerpt in self.open_excerpts if excerpt.is_open]

    def read(self, line: bytes) -> list[FailureSign]:
        """Read the next line of a log; return the signs of failure in it.

        If the line begins an unrelated traceback, the exception held back for the previous one comes first.
        """
        label = writer_label(line)
        read = [
            sign for word, cause in _WORDS if word in line and (sign := cause.find(line, line.find(word)))
        ]
        sign_by_kind = {sign.kind: sign for sign in reversed(read)}  # each kind once
        if len(sign_by_kind) > 1:
            sign_by_kind.pop("nccl_warning", None)  # the other one says what was warned of
        signs = [self._placed(sign, line, label) for sign in reversed(sign_by_kind.values())]
        if _LAST_ERROR in line:
            began = _LABELLED.search(self.around.before) if label is None else None
            self._awaited.append(_Awaited(label, began and began["rank"], self.around, self.position))
            self._keep_open(self.around)
        if any(words in line for words in _ASIDE):
            self._asides.add(label)
        of_traceback = self._read_traceback(line, label, is_known=bool(signs))
        if not signs and of_traceback is None:
            signs = self._error_line(line, label)
        return [*(of_traceback or ()), *signs]

    def _placed(self, sign: FailureSign, line: bytes, label: bytes | None) -> FailureSign:
        """Add to a sign where it was printed, and lower its weight if its line is only a warning."""
        text = line[:_REACH_BEHIND]
        is_vague = sign.is_vague or _OF_COMMUNICATION.search(text) is not None
        weight = sign.weight
        if weight in (Weight.HAPPENED, Weight.WARNED) and (
            _WARNING.search(text) or (is_vague and _FOLLOWS.search(text))
        ):
            weight = Weight.FOLLOWED
        sentence = sign.sentence
        if sentence and weight is Weight.ENDED:
            sentence += _silence(text, self.around.before)
        form = sign.form
        if any(words in line for words in _IN_LAUNCHERS_TABLE) and _OF_LATER_FAILURE.search(
            self.around.before
        ):
            form = _LAST_FORM
        places = self._places(line, label, is_vague=sign.is_vague) | dict(sign.places)
        if "task" in sign.places:
            places.pop("rank", None)
        return self._with_excerpt(
            sign._replace(places=places, weight=weight, is_vague=is_vague, sentence=sentence, form=form)
        )

    def _places(self, line: bytes, label: bytes | None, *, is_vague: bool) -> dict[str, str]:
        """Return where a line says that it happened: in its text, its prefix, or the lines before it."""
        places: dict[str, bytes | None] = {}
        of_label = _NODE_OF_LABEL.search(label) if label else None
        if by_nccl := _NCCLS_PREFIX.search(line):
            places |= by_nccl.groupdict()
        elif node := _NODE_OF_PREFIX.match(line) or of_label:
            places["node"] = node[1]
        if label is not None and label.isdigit() and not any(words in line for words in _BY_SLURM):
            places["rank"] = label
        elif is_vague and (rank := _RANK_IN_TEXT.search(line)):
            places["rank"] = rank[1]
        if place := _PLACE.search(line):
            places |= {"rank": place["rank"] or place["of"], "node": place["node"] or places.get("node")}
        elif any(words in line for words in _IN_LAUNCHERS_TABLE) and (
            table := _LAUNCHERS_TABLE.search(self.around.before)
        ):
            places |= table.groupdict()
        elif any(words in line for words in _ENDS_OF_MPI) and (ended := _OF_MPI.search(self.around.before)):
            places |= {"rank": ended["rank"] or ended["of"], "node": ended["node"] or ended["there"]}
        elif _OF_AN_ACTOR.search(line) and (actor := _RAYS_ACTOR.search(self.around.before)):
            places |= actor.groupdict()
        return {name: quote(value) for name, value in places.items() if value}

    def _with_excerpt(self, sign: FailureSign) -> FailureSign:
        self._keep_open(self.around)
        return sign._replace(excerpt=self.around, at=self.position)

    def _keep_open(self, excerpt: Excerpt) -> None:
        if excerpt.is_open and (not self.open_excerpts or self.open_excerpts[-1] is not excerpt):
            self.open_excerpts.append(excerpt)

    def _error_line(self, line: bytes, label: bytes | None) -> list[FailureSign]:
        """Return a sign that quotes a line which says, or seems to say, that something failed."""
        text = line[:_REACH_BEHIND]
        is_by_slurm = any(words in line for words in _BY_SLURM)
        if _MILD.search(text):
            return []
        if timed_out := _TIMED_OUT.search(text) is not None:
            weight = Weight.HAPPENED
        elif _SEVERE.search(text):
            weight = Weight.EXITED if is_by_slurm else Weight.SEVERE
        elif _COMPLAINT.search(text) and not is_by_slurm:
            weight = Weight.COMPLAINED
        else:
            return []
        places = self._places(text, label, is_vague=True)
        sentence = _literal(f"an error line of the log: {quote(text)}")
        sign = FailureSign(ERROR_LINE, sentence, weight, places=places, is_vague=timed_out)
        return [self._with_excerpt(sign)]

    def _read_traceback(
        self, line: bytes, label: bytes | None, *, is_known: bool
    ) -> Iterable[FailureSign] | None:
        """Return exceptions that are complete now; None if the line is part of no traceback."""
        begins = _TRACEBACK in line
        if not begins and label not in self._traces:
            return None
        trace = self._traces[label]
        if _CHAINED in line:
            trace.is_chained = True
            return ()
        if begins:
            before: list[FailureSign] = []
            of_a_rank = _OF_A_RANK.search(line)
            if not trace.is_chained and not of_a_rank:
                before = self._flush(label)
                self._traces[label].is_aside = label in self._asides
                self._asides.discard(label)
            trace = self._traces[label]
            if of_a_rank:
                before = [trace.last] if trace.of_rank and trace.last else []
                trace.of_rank = of_a_rank[1]
            trace.is_open, trace.is_chained = True, False
            trace.places = self._places(line, label, is_vague=False)
            return before
        exception = _EXCEPTION.search(line) if trace.is_open and not _SOURCE_LINE.match(line) else None
        if exception is None:
            if trace.last and (why := _OF_AN_ACTOR.search(line)):
                name = quote(trace.first.partition(b":")[0])
                sentence = _literal(f"{_PYTHON} {name}: {quote(why[0])}")
                places = {**trace.last.places, **self._places(line, label, is_vague=False)}
                trace.last = trace.last._replace(sentence=sentence, places=places)
                return ()
            return () if trace.is_open else None
        trace.is_open = False
        trace.is_explained |= is_known
        # Torchrun's own follows from a rank that failed, which has a line of its own.
        if trace.is_explained or exception["name"].endswith(b"ChildFailedError"):
            trace.last = None
        else:
            text = exception["name"] + (b": " + exception["text"] if exception["text"] else b"")
            trace.last = self._exception(text, label, trace)
            trace.first = trace.first or text
        return ()

    def _exception(self, text: bytes, label: bytes | None, trace: _Trace) -> FailureSign:
        follows = trace.is_aside or _FOLLOWS.search(text) is not None
        quoted = quote(text)
        # What a chain began with often says why: but not `KeyError: 'x'`, nor what the last one repeats.
        began = quote(trace.first.partition(b": ")[2]) if not trace.of_rank else ""
        if " " in began and began not in quoted:
            quoted += f" (after: {quote(trace.first)})"
        sign = FailureSign(
            _TRACEBACK_KIND,
            _literal(f"{_PYTHON} {quoted}"),
            Weight.FOLLOWED if follows else Weight.HAPPENED,
            is_vague=_OF_COMMUNICATION.search(text) is not None,
        )
        placed = self._placed(sign, b"", trace.of_rank or label)
        return placed._replace(places=trace.places | dict(placed.places))

    def follow_up(self, line: bytes) -> list[FailureSign]:
        """Return the NCCL error in a line that follows `Last error:`; empty if the line does not have it."""
        label = writer_label(line)
        text = line.strip() if label is None else line.partition(b": ")[2].strip()
        head = None
        if text and not _RAISED_BY_NCCL.search(text):
            head = next((awaited for awaited in self._awaited if awaited.label == label), None)
        for awaited in self._awaited:
            awaited.lines -= 1
        self._awaited = [awaited for awaited in self._awaited if awaited.lines and awaited is not head]
        if head is None:
            return []
        sign = _LAST_ERROR_CAUSE.sign("NCCL: {text}", 0, {"text": quote(text)})
        placed = self._placed(sign, b"", head.rank if label is None else label)
        return [placed._replace(excerpt=head.around, at=head.position)]

    def flush(self) -> list[FailureSign]:
        """Return the exceptions that were held back in case chained ones follow, one for each writer."""
        return [sign for label in [*self._traces] for sign in self._flush(label)]

    def finish(self) -> list[FailureSign]:
        """Return the remaining signs at the end of the log.

        Among them are tracebacks whose exception never came or was not recognized.
        """
        signs: list[FailureSign] = []
        for label in [*self._traces]:
            if self._traces[label].is_open:
                message = f"{_PYTHON} its last line was not recognised"
                sign = FailureSign(_TRACEBACK_KIND, message, Weight.FOLLOWED, form=1)
                signs.append(self._placed(sign, b"", label)._replace(excerpt=None))
            signs += self._flush(label)
        return signs

    def _flush(self, label: bytes | None) -> list[FailureSign]:
        trace = self._traces[label]
        if not trace.is_open:
            del self._traces[label]
        last, trace.last = trace.last, None
        return [] if last is None else [last]


def _signal(code: int) -> signal.Signals | None:
    """Return the signal that an exit code stands for: negative in Python, above 128 in a shell."""
    with suppress(ValueError):
        return signal.Signals(-code if code < 0 else code - 128)
    return None


def _exit_code(code: int) -> str:
    """Describe an exit code and its signal."""
    ended_by = _signal(code)
    return f"{code} ({ended_by.name}{_HINTS.get(ended_by, '')})" if ended_by else str(code)


def _ended_by(values: Mapping[str, str]) -> signal.Signals | None:
    """Return the signal that ended a process, by what `code`, `number` or `how` says; None if none did."""
    if "code" in values:
        return _signal(int(values["code"]))
    if "number" in values:
        return _signal(-int(values["number"]))
    return _SIGNAL_OF_NAME.get(values.get("how", "").partition(" (")[0])


def _literal(text: str) -> str:
    """Return text as part of a sentence, in which names in braces stand for places."""
    return text.replace("{", "{{").replace("}", "}}")


def quote(text: bytes) -> str:
    """Return text of a log, cut to 300 bytes, as valid and printable text; identifiers are shortened."""
    short = _LONG_NAME.sub("…".encode(), text[: 3 * _LONGEST_QUOTE])
    decoded = short[:_LONGEST_QUOTE].decode(errors="replace").strip()
    return "".join(character if character.isprintable() else " " for character in decoded)
