"""Read a log, complete or growing, as events: steps, checkpoints, records, closing messages, failures."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from ahocorasick_rs import BytesAhoCorasick, MatchKind

from steptime.logs.checkpoints import CHECKPOINT_WORDS, CheckpointLine, read_checkpoints
from steptime.logs.excerpts import BYTES_BEFORE, Excerpt
from steptime.logs.failure_causes import FAILURE_WORDS, Failures, quote
from steptime.logs.failure_timeline import FailureSign
from steptime.logs.formats import (
    SETUP_WORDS,
    LogFormat,
    Setup,
    StepPrinted,
    Values,
    formats_of,
    plain,
    read_setup,
    writer_label,
)
from steptime.logs.line_forms import KnownForms, RepeatedStep, has_forms
from steptime.logs.log_completeness import CLOSING_WORDS, Closing, read_closing
from steptime.logs.network import NETWORK_WORDS, NetworkLine, read_network
from steptime.logs.training_log import Problem, Step
from steptime.recipes.models import Mode

NODE_CHECK = "node_check"
TRAINER_FAILED = "trainer_failed"
_NAMES = (NODE_CHECK, "start", "resumed", "rank_times", "gpu_samples", "collective", "result")
RECORD_WORDS = (b"steptime.",)
_RECORD = re.compile(rf"steptime\.({'|'.join(_NAMES)}) (?=\{{)".encode())
_BUCKETS = 16
"""Buckets of the vectorized search for words (aho-corasick's `packed` module)."""
MAX_LINE_BYTES = 1 << 20
"""A longer line is searched in pieces, so that binary garbage cannot fill the memory."""
_CUT_NUMBER = re.compile(rb"(?<![0-9.eE+-])[0-9.eE+-]{1,40}$")
_NOTHING: Values = {}
_PROFILE_WORDS = (
    b"range started in the application",  # Nsight Systems
    b"profiling setup with start_step",  # NeMo 2
    b"====== Start nsys profiling ======",  # NeMo 1
    b"active. Traces will be saved",  # torchtitan
    b"] Completed Stage: ",  # PyTorch's profiler
    b".nsys-rep",  # the report that Nsight Systems has generated
)
"""Parts of lines that show profiling. They begin after the line's first word, with which the search took
twice as long (`Capture`, `Nsys`, `Profiling`)."""
_NCCL_CALL = b": opCount "
"""Part of each call that NCCL logs; as a marker word it would match almost every line of a trace."""
_NCCL_CALL_WITHIN = 1 << 26
"""Bytes at a log's beginning that are searched for calls: ranks call each other before they train."""
OF_THE_LOG = (
    *("truncated_line", "broken_record", "binary_data", "broken_archive"),
    *("comma_in_number", "unnumbered_steps"),
)
"""Kinds of problems of the log itself, which are the only problems among the events."""


class Record(NamedTuple):
    """One of the trainer's records: JSON after a word such as `steptime.start`."""

    name: str
    values: dict[str, Any]


def read_records(line: bytes) -> list[Record | Problem]:
    """Return the trainer's records in a line. Text after the JSON is ignored; invalid JSON is a problem."""
    records: list[Record | Problem] = []
    for match in _RECORD.finditer(line):
        name, text = match[1].decode(), line[match.end() :].decode(errors="replace")
        try:
            records.append(Record(name, json.JSONDecoder().raw_decode(text)[0]))
        except (ValueError, RecursionError):  # broken JSON, or made to break the decoder
            message = f"the trainer's record steptime.{name} is cut or broken"
            records.append(Problem(kind="broken_record", message=message, fatal=False))
    return records


def report_trainer_end(records: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a problem if the trainer's records show a failure, an early stop, or no end."""
    end = records.get("result", {})
    state, error = end.get("state"), end.get("error")
    if "result" not in records:
        if "start" in records:
            message = "the trainer wrote no record of its end: it was ended from outside, or still runs"
            yield Problem(kind="no_end_record", message=message, fatal=True)
    elif state == "failed" and isinstance(error, str):
        yield Problem(kind=TRAINER_FAILED, message=error, fatal=True)
    elif state != "completed":
        why = f": {error}" if isinstance(error, str) else ""
        message = f"the trainer recorded its end as '{state}'{why}"
        yield Problem(kind="trainer_state", message=message, fatal=True)


Event = (
    StepPrinted
    | RepeatedStep
    | Setup
    | Closing
    | CheckpointLine
    | Record
    | NetworkLine
    | Mode
    | FailureSign
    | Problem
)
_Reader = LogFormat | Callable[..., Iterable[Event]]


class MarkedLine(NamedTuple):
    """A line of a log with words that hint at a step, a record or a failure, such as `iteration`."""

    text: bytes
    """Text without the line end (`\\n`, or the `\\r` that progress bars write instead)."""
    words: list[int]
    """Indexes of the marker words in the line, in order."""
    whole: bool
    """False if the data ended within the line: its last number may be truncated."""
    end: int
    """Position of the line's end in its block."""


@dataclass
class Position:
    """The end of the lines of a block that are read."""

    end: int = 0


class WholeLines:
    """Cuts bytes that arrive in pieces of any size into blocks of complete lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.waiting_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return the lines completed by `data`; the rest is kept until its line ends or becomes too long."""
        end = data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1
        if not end:
            self._rest.append(data)
            self.waiting_bytes += len(data)
            return self.finish() if self.waiting_bytes >= MAX_LINE_BYTES else b""
        block = b"".join((*self._rest, memoryview(data)[:end]))
        self._rest = [data[end:]]
        self.waiting_bytes = len(data) - end
        return block

    def finish(self) -> bytes:
        """Return the last line if the log ended without a line end; else nothing."""
        block = b"".join(self._rest)
        self._rest.clear()
        self.waiting_bytes = 0
        return block


class LineSearch:
    """Finds lines that contain any of `words`, at memory speed, without decoding the rest of the log.

    It reads a stream, not a memory map: if a file shrinks under a map, the process dies with SIGBUS.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        self.words = words
        # Only the leftmost kinds of match have the vectorized search: 17 GB/s against 0.7.
        self._automaton = BytesAhoCorasick(words, matchkind=MatchKind.LeftmostLongest)

    def lines(self, block: bytes, read: Position | None = None) -> Iterator[MarkedLine]:
        """Yield the lines of a block that contain a marker word, in order.

        Those before the position `read`, which the caller may move, are left out.
        """
        line: MarkedLine | None = None
        end, newline = read.end if read is not None else 0, -1
        if end == len(block):
            return
        for word, start, _ in self._automaton.find_matches_as_indexes(block):
            if start < end:
                if line is not None:
                    line.words.append(word)
                continue
            if line is not None:
                yield line
                line = None
                if read is not None and read.end > end:
                    end = read.end
                    if start < end:
                        continue
            previous = max(block.rfind(b"\n", end, start), end - 1)
            begin = max(block.rfind(b"\r", previous + 1, start), previous) + 1
            if newline < start:
                newline = block.find(b"\n", start)
                newline = len(block) if newline < 0 else newline
            carriage_return = block.find(b"\r", start, newline)
            end = newline if carriage_return < 0 else carriage_return
            line = MarkedLine(block[begin:end], [word], whole=end < len(block), end=end)
        if line is not None:
            yield line


@cache
def _readers(step_line: str | None) -> list[tuple[Iterable[bytes], _Reader]]:
    """Return the line readers with their marker words, in the order in which they read a line."""
    return [
        *((log_format.words, log_format) for log_format in formats_of(step_line)),
        (CHECKPOINT_WORDS, read_checkpoints),
        (_PROFILE_WORDS, lambda _: [Mode.PROFILE]),
        (SETUP_WORDS, read_setup),
        (NETWORK_WORDS, read_network),
        (CLOSING_WORDS, read_closing),
        (RECORD_WORDS, read_records),
        (FAILURE_WORDS, Failures.read),
    ]


@cache
def line_search(step_line: str | None = None) -> LineSearch:
    """Return a search for the lines that any reader may parse, by their marker words.

    At most 64 words are possible, the limit of the vectorized search.
    """
    words = sorted({word for words, _ in _readers(step_line) for word in words})
    # The search deals words out to buckets in turn, and looks for a bucket's words by the halves of their
    # first bytes. If words in a bucket are alike in these, it finds fewer places that only may have a word.
    words.sort(key=lambda word: bytes(byte & 15 for byte in word))
    rounds = -(-len(words) // _BUCKETS)
    return LineSearch([word for number in range(rounds) for word in words[number::rounds]])


@lru_cache(maxsize=1024)
def _select_readers(indexes: tuple[int, ...], step_line: str | None) -> list[_Reader]:
    """Return the readers to try on a line. `indexes` are those of the words of `line_search` in the line."""
    words_in_line = {line_search(step_line).words[index] for index in indexes}
    return [reader for words, reader in _readers(step_line) if not words_in_line.isdisjoint(words)]


class LogEvents:
    """Parses one log, given from its start in pieces of any size, into events: steps, failures, …

    `step_line` is the form of its steps, if it is none of `logs.formats.FORMATS`.
    """

    def __init__(self, step_line: str | None = None) -> None:
        self._step_line = step_line
        self.lines = WholeLines()
        self._looks_for_calls = _NCCL_CALL_WITHIN
        self.ahead: dict[str, Values] = {}
        """Values printed ahead of their step, by format."""
        self._unnumbered: list[tuple[LogFormat, Values]] | None = []
        """Values printed without a step number; None once a numbered step was printed."""
        self.failures = Failures()
        self._forms = KnownForms()
        self.last_bytes = b""
        """The end of the previous block."""
        self._bytes = 0
        """Bytes of the blocks before."""

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events of all lines completed by `data`, in order."""
        return self._read(self.lines.feed(data))

    def finish(self) -> Iterator[Event]:
        """Yield the remaining events: of an unterminated last line, unnumbered steps and tracebacks."""
        yield from self._read(self.lines.finish())
        yield from self._unnumbered_steps()
        yield from self.failures.finish()

    def _read(self, block: bytes) -> Iterator[Event]:
        self.failures.extend_excerpts(block)
        position = Position()
        if self.failures.is_idle:
            yield from self._known_steps(block, position)
        followed = position.end
        if self._looks_for_calls > 0:
            self._looks_for_calls -= len(block)
            if block.find(_NCCL_CALL, followed) >= 0:
                self._looks_for_calls = 0
                yield Mode.NCCL_TRACE
        for line in line_search(self._step_line).lines(block, position):
            yield from self._follow_up(block, followed, line.end)
            followed = line.end + 1
            yield from self._read_line(line, block)
            if self._note(line):
                position.end = followed
                yield from self._known_steps(block, position)
        yield from self._follow_up(block, followed, len(block))
        self._bytes += len(block)
        self.last_bytes = (self.last_bytes + block[-BYTES_BEFORE:])[-BYTES_BEFORE:]

    def _note(self, line: MarkedLine) -> bool:
        """Note the form of a step line; return whether lines behind it may have a known form."""
        readers = _select_readers(tuple(line.words), self._step_line)
        log_format = readers[0]
        return (
            len(readers) == 1
            and isinstance(log_format, LogFormat)
            and has_forms(log_format)
            and not self.failures.awaits
            and self._forms.note(log_format, line.text)
        )

    def _known_steps(self, block: bytes, position: Position) -> Iterator[Event]:
        """Yield the steps in lines of known forms at a position of a block, and move it behind them."""
        for form, lines in self._forms.steps(block, position.end):
            position.end = lines[-1].end()
            if form.counter is None:
                self._print_ahead(form.log_format, form.values(lines[0]))
                continue
            number = int(lines[0][form.counter]) - form.log_format.first
            ahead = self.ahead.pop(form.log_format.name, _NOTHING)
            if number >= 0:
                yield form.printed(number, lines[0], ahead)
                if len(lines) > 1:
                    yield RepeatedStep(form, number, lines[1:])

    def _follow_up(self, block: bytes, begin: int, until: int) -> Iterator[FailureSign]:
        """Read the lines from `begin` to `until` while a sign of failure needs them."""
        while self.failures.awaits and begin < until:
            end = block.find(b"\n", begin, until)
            end = until if end < 0 else end
            yield from self.failures.follow_up(plain(block[begin:end]))
            begin = end + 1

    def _print_ahead(self, log_format: LogFormat, values: Values) -> None:
        self.ahead[log_format.name] = values
        if self._unnumbered is not None and "rounded_step_time_s" in values:
            self._unnumbered.append((log_format, values))

    def _unnumbered_steps(self) -> Iterator[Event]:
        """Yield the steps that were printed without numbers, counted from 0, and a problem that says so."""
        unnumbered, self._unnumbered = self._unnumbered or (), None
        for number, (log_format, values) in enumerate(unnumbered):
            printed = log_format.printed(number, values, None, b"%d" % number)
            yield printed._replace(is_late=True)
        if unnumbered:
            message = "the step lines have no numbers: the steps are counted from 0"
            yield Problem(kind="unnumbered_steps", message=message, fatal=False)

    def _read_line(self, line: MarkedLine, block: bytes) -> Iterator[Event]:
        """Yield the events of a line, and exceptions held back until now."""
        text = plain(line.text)
        for reader in _select_readers(tuple(line.words), self._step_line):
            if reader is Failures.read:
                self.failures.position = self._bytes + line.end
                self.failures.around = Excerpt.around(line.end, block, self.last_bytes)
                yield from self.failures.read(text)
                continue
            if isinstance(reader, LogFormat) or reader is read_records:
                yield from self.failures.flush()  # an exception before a restart is of the earlier attempt
            elif reader is read_closing:
                yield from self._unnumbered_steps()
            if isinstance(reader, LogFormat):
                yield from self._steps(reader, text, whole=line.whole)
            else:
                events = reader(text)
                if reader is read_checkpoints and events:
                    yield from self.failures.flush()
                yield from events

    def _steps(self, log_format: LogFormat, text: bytes, *, whole: bool) -> Iterator[Event]:
        uncut = text if whole else _CUT_NUMBER.sub(b"", text)
        last: Step | None = None
        for own_text, values in log_format.find(uncut):
            number = log_format.number(values)
            if "with_comma" in values:
                yield _comma(values["with_comma"])
            if number is None:
                self._print_ahead(log_format, values)
                continue
            self._unnumbered = None
            all_values = self.ahead.pop(log_format.name, _NOTHING) | values
            printed = log_format.printed(number, all_values, writer_label(text), own_text)
            last = printed.step
            if number >= 0:
                yield printed
        if not whole and (uncut != text or (last is not None and last.step_time_s is None)):
            what = "a step" if last is None else f"step {last.global_step}"
            message = f"the log ends within the line of {what}: what was cut is not read"
            yield Problem(kind="truncated_line", message=message, fatal=False)


def _comma(field: bytes) -> Problem:
    message = (
        f"'{quote(field)}' has a comma in its number, which is not read as it may be a decimal comma: "
        "run the training with LC_ALL=C"
    )
    return Problem(kind="comma_in_number", message=message, fatal=True)
