"""Read the training log of a run in one pass, without holding its text in memory."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import zstandard
from isal import isal_zlib

from steptime.errors import UserError
from steptime.files import (
    LOG_HEAD_BYTES,
    LOG_TAIL_BYTES,
    MOST_LOG_BYTES,
    is_left_out_mark,
    left_out_mark,
    open_regular,
)
from steptime.logs import log_completeness
from steptime.logs.attempts import Attempts
from steptime.logs.checkpoints import Checkpoint, CheckpointLine, assemble_checkpoints
from steptime.logs.events import (
    NODE_CHECK,
    TRAINER_FAILED,
    Event,
    LogEvents,
    Record,
    report_trainer_end,
)
from steptime.logs.excerpts import Excerpt
from steptime.logs.failure_causes import advice, hidden_by
from steptime.logs.failure_timeline import FailureSign, Timeline, earlier_problems
from steptime.logs.formats import TORCHTITAN, Setup, StepPrinted, writer_label
from steptime.logs.line_forms import RepeatedStep
from steptime.logs.log_completeness import Closing, End
from steptime.logs.network import NetworkFacts, NetworkLine
from steptime.logs.training_log import Problem, Step, TrainingLog
from steptime.recipes.models import Mode
from steptime.wording import counted

_OfAttempts = Sequence[Sequence[Checkpoint]]
_PIECE_BYTES = 1 << 17
_LEAST_PACKED_BYTES, _MOST_PACKED_BYTES = 1 << 6, 1 << 14
_DATE = re.compile(rb"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_UNPACKERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: isal_zlib.decompressobj(31),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


class LogBuilder:
    """Collects the events of a run's logs and builds a `TrainingLog` from them.

    `step_line` is the form of their steps, if it is none of `logs.formats.FORMATS`.
    """

    def __init__(self, step_line: str | None = None) -> None:
        self._step_line = step_line
        self._path = ""
        self._bytes = 0
        self._format = ""
        self._other_formats: Counter[str] = Counter()
        self._shown_modes: set[Mode] = set()
        self._attempts = Attempts()
        self._last_step: int | None = None
        self._printed: tuple[int, int] | None = None
        """Iterations done and total in the last line, if these are not global steps."""
        self._has_saved = self._trained_after_save = False
        """Whether a checkpoint was saved, and whether a step followed that."""
        self._has_steps = False
        """Whether the last attempt has printed a step."""
        self._closing: Closing | None = None
        """The closing message of the last attempt."""
        self._setup = Setup()
        self._network = NetworkFacts()
        """The network in the last log."""
        self._records: dict[str, dict[str, Any]] = {}
        """The trainer's records in the last attempt, by kind."""
        self._checkpoint_lines: list[list[CheckpointLine]] = [[]]
        """The lines about checkpoints in each attempt."""
        self._failures = [Timeline()]
        """The signs of failure in each attempt."""
        self._last_lines = Excerpt()
        """The last lines of the last log."""
        self._remarks: dict[str, Problem] = {}
        """Problems of the log itself, by kind."""

    def read(self, path: str, pieces: Iterable[bytes]) -> None:
        """Read the run's first or next log from pieces of bytes.

        If `pieces` raises EOFError, as for a damaged archive, the log ends there and has this problem.
        """
        if self._path:
            self._start_run_again()
            self._network = NetworkFacts()
        self._path = path
        self._last_lines = Excerpt(self._read(path, pieces, self._take))

    def read_failures(self, path: str, pieces: Iterable[bytes]) -> None:
        """Read only the failures in another log of the last attempt, such as that of another node."""
        self._failures[-1].next_log()
        self._read(path, pieces, self._take_failure)

    def _read(self, path: str, pieces: Iterable[bytes], take: Callable[[Event], None]) -> bytes:
        """Read a log, call `take` with each of its events, and return the log's last bytes."""
        events, log_bytes = LogEvents(self._step_line), 0
        try:
            for piece in pieces:
                if is_left_out_mark(piece):
                    message = (
                        f"the log is larger than {MOST_LOG_BYTES >> 20:,} MiB: only its first "
                        f"{LOG_HEAD_BYTES >> 20:,} MiB and its last {LOG_TAIL_BYTES >> 20:,} MiB are read"
                    )
                    take(Problem(kind="log_too_large", message=message, fatal=False))
                if (at := piece.find(b"\0")) >= 0:
                    message = f"the log holds binary data, first at byte {log_bytes + at:,}"
                    take(Problem(kind="binary_data", message=message, fatal=False))
                log_bytes += len(piece)
                for event in events.feed(piece):
                    take(event)
        except EOFError as error:
            message = f"the compressed log '{path}' is cut or damaged: {error}"
            take(Problem(kind="broken_archive", message=message, fatal=False))
        for event in events.finish():
            take(event)
        self._bytes += log_bytes
        return events.last_bytes

    def result(self, *, max_steps: int | None, first_step: int, gpu_type: str | None = None) -> TrainingLog:
        """Return the content of the run's logs, with its problems, fatal ones first."""
        steps = tuple(self._attempts.steps[number] for number in sorted(self._attempts.steps))
        self._time_by_rate(steps)
        *earlier, last = self._checkpoint_lines
        recorded = self._records.get("result", {}).get("checkpoints")
        checkpoints = [*map(assemble_checkpoints, earlier), assemble_checkpoints(last, recorded)]
        end = self._end(max_steps)
        causes = self._causes(complete=end.is_complete([step.global_step for step in steps]))
        problems = [
            problem.model_copy(update={"message": problem.message + advice(problem.kind, gpu_type)})
            for problem in self._problems(steps, checkpoints, end, first_step, [*causes])
        ]
        problems.sort(key=lambda problem: (not problem.fatal, problem.kind != TRAINER_FAILED))
        around = {problem.kind: excerpt for problem, excerpt in causes.items() if problem.fatal and excerpt}
        excerpts = [around.get(problem.kind) for problem in problems if problem.fatal]
        excerpt = next(filter(None, excerpts), self._last_lines) if excerpts else Excerpt()
        return TrainingLog(
            path=self._path,
            format=self._format or "none",
            mode=self._mode(trained=bool(steps)),
            bytes_read=self._bytes,
            steps=steps,
            checkpoints=tuple(checkpoint.timing for checkpoint in chain.from_iterable(checkpoints)),
            problems=tuple(problems),
            excerpt=excerpt.text,
            network=self._network.result(),
            node_check=self._records.get(NODE_CHECK),
            started=self._records.get("start"),
            resumed=self._records.get("resumed"),
            rank_times=self._records.get("rank_times"),
            gpu_samples=self._records.get("gpu_samples"),
            collective=self._records.get("collective"),
            ended=self._records.get("result"),
        )

    def _take(self, event: Event) -> None:
        match event:
            case StepPrinted():
                self._take_step(event)
            case RepeatedStep():
                self._take_repeated(event)
            case Setup():
                self._setup = Setup(
                    *(old if new is None else new for new, old in zip(event, self._setup, strict=True))
                )
            case Closing():
                self._closing = event
            case CheckpointLine():
                if event.form.kind == "load" and self._has_steps and self._closing is None:
                    self._attempts.begin()
                    self.start_attempt()  # a training only loads a checkpoint before its first step
                self._checkpoint_lines[-1].append(event)
                self._has_saved |= event.form.kind == "save"
            case Record():
                if event.name == "start" and "start" in self._records:
                    self._start_run_again()
                self._records[event.name] = event.values
            case NetworkLine():
                self._network.take(event)
            case Mode():
                self._shown_modes.add(event)
            case Problem():
                self._remarks.setdefault(event.kind, event)
            case FailureSign():
                self._failures[-1].add(event)

    def _take_failure(self, event: Event) -> None:
        if isinstance(event, FailureSign):
            self._take(event)

    def _take_repeated(self, event: RepeatedStep) -> None:
        if event.form.log_format.name == self._format:
            for step in self._attempts.unclear(event):
                self._take_step(step)
        else:
            self._other_formats[event.form.log_format.name] += len(event.matches)

    def _take_step(self, event: StepPrinted) -> None:
        name = event.log_format.name
        self._format = self._format or name
        if name != self._format:
            self._other_formats[name] += 1
            return
        if event.last_step is not None:
            self._last_step = event.last_step
            number = event.step.global_step
            counts_steps = event.done is None or event.done == number + 1
            left = event.last_step - number
            self._printed = None if counts_steps else (event.done or 0, (event.done or 0) + left)
        for new in self._attempts.add(event):
            if isinstance(new, Problem):
                if self._has_steps:
                    self.start_attempt()
                continue
            self._has_steps = True
            self._trained_after_save |= self._has_saved
            if not event.is_late:
                self._failures[-1].add_step()
            if self._closing is not None and not self._is_before_closing(new.global_step):
                self._closing = None

    def _is_before_closing(self, step: int) -> bool:
        """Return whether a step printed after the closing message was trained before it."""
        reached = self._closing.max_steps if self._closing else None
        return step == self._last_step if reached is None else step < reached

    def _time_by_rate(self, steps: Iterable[Step]) -> None:
        """Fill in step times derived from tokens per second and the tokens of a step."""
        tokens, gpus = self._setup.tokens_per_step, self._setup.gpus
        if tokens and gpus:
            for step in steps:
                if step.step_time_s is None and step.tokens_per_s_per_gpu:
                    step.step_time_s = tokens / gpus / step.tokens_per_s_per_gpu

    def _start_run_again(self) -> None:
        """Begin an attempt of a new start of the trainer: the records of the previous one do not count."""
        self._attempts.begin()
        # Nodes are checked before the start that they are checked for.
        self._records = {name: self._records[name] for name in self._records if name == NODE_CHECK}
        self.start_attempt()

    def start_attempt(self) -> None:
        """Begin the next attempt: failures until now did not end the run."""
        self._closing = None
        self._checkpoint_lines.append([])
        self._failures.append(Timeline())
        self._has_steps = False

    def _mode(self, *, trained: bool) -> Mode | None:
        """Return the mode that the log shows; None if it shows none and nothing was trained.

        Loading a checkpoint after a restart does not count.
        """
        for mode in (Mode.PROFILE, Mode.NCCL_TRACE):
            if mode in self._shown_modes:
                return mode
        began_with = (line for line in self._checkpoint_lines[0] if line.form.kind == "load")
        if any(line.form.phase == "ended" or "unix" in line.numbers for line in began_with):
            return Mode.CHECKPOINT_LOAD
        # Torchtitan saves after the last step of every training with checkpoints: no step waits for that.
        if self._trained_after_save or (self._has_saved and self._format != TORCHTITAN.name):
            return Mode.CHECKPOINT_SAVE
        return Mode.PERFORMANCE if trained else None

    def _end(self, max_steps: int | None) -> End:
        if max_steps is not None:
            return End(max_steps - 1, planned=True, closing=self._closing)
        last = self._setup.last_step if self._last_step is None else self._last_step
        return End(last, planned=False, closing=self._closing, printed=self._printed)

    def _causes(self, *, complete: bool) -> dict[Problem, Excerpt | None]:
        """Return the causes of failure that the last attempt shows, first cause first, with their lines."""
        causes = self._failures[-1].problems(complete=complete)
        hidden = hidden_by({cause.kind for cause, _ in causes})
        return {cause: excerpt for cause, excerpt in causes if cause.kind not in hidden}

    def _problems(
        self,
        steps: Sequence[Step],
        checkpoints: _OfAttempts,
        end: End,
        first_step: int,
        causes: Sequence[Problem],
    ) -> Iterator[Problem]:
        numbers = [step.global_step for step in steps]
        last = end.last_step if end.planned else None
        yield from causes
        yield from earlier_problems(self._failures[:-1])
        if numbers:
            early = log_completeness.report_early_end(numbers, end)
            is_failed = any(cause.fatal for cause in causes)
            yield from (problem for problem in early if problem.kind != "end_unknown" or not is_failed)
            begin = self._expected_first(first_step, checkpoints)
            yield from log_completeness.report_gaps(numbers, begin=begin, first=first_step, last=last)
            yield from log_completeness.report_not_finite(self._attempts.not_finite)
            yield from log_completeness.report_untimed(steps)
            yield from log_completeness.report_uneven_times(steps)
            yield from self._attempts.restarts
            yield from log_completeness.report_repeated(self._attempts.repeats)
        else:
            loaded = any(line.form.kind == "load" for line in self._checkpoint_lines[-1])
            last_lines = self._last_lines.before
            yield log_completeness.report_no_steps(
                self._bytes, self._closing, last_lines, self._step_line, loaded=loaded
            )
        yield from log_completeness.report_unfinished_saves(checkpoints)
        yield from report_trainer_end(self._records)
        for name, count in self._other_formats.items():
            lines, verb = counted(count, "line"), "does" if count == 1 else "do"
            message = f"{lines} of the format {name} beside those of {self._format} {verb} not count"
            yield Problem(kind="mixed_formats", message=message, fatal=False)
        yield from self._remarks.values()

    def _expected_first(self, planned: int, checkpoints: _OfAttempts) -> int | None:
        """Return the first global step that the log should have; None if a load does not tell its step."""
        if planned:
            return planned
        resumed = self._records.get("resumed", {}).get("global_step")
        if isinstance(resumed, int):
            return resumed
        loads = [
            checkpoint.timing
            for checkpoint in chain.from_iterable(checkpoints)
            if checkpoint.timing.kind == "load"
        ]
        return loads[0].iteration if loads else 0


def read_log(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    other_outputs: Sequence[Path] = (),
    max_steps: int | None = None,
    first_step: int = 0,
    gpu_type: str | None = None,
    step_line: str | None = None,
) -> TrainingLog:
    """Read the log of one run, or its logs in order if the job was requeued.

    `.gz` and `.zst` files are decompressed. Problems with the content are part of the result. Raises
    UserError if a file cannot be read.

    Args:
        paths: the log or logs.
        other_outputs: the run's other outputs, such as logs of other nodes; only failures are read from them.
        max_steps, first_step, gpu_type: those of the planned run (`Run`). Without `max_steps` the log
            itself shows whether training is complete, see docs/reference/logs.md.
        step_line: how the program prints a step, if it is none of the known formats.
    """
    files = [Path(paths)] if isinstance(paths, str | PathLike) else [Path(path) for path in paths]
    if not files:
        raise UserError("no log to read: name at least one file")
    builder = LogBuilder(step_line)
    for file in files:
        builder.read(str(file), _pieces(file))
    for file in other_outputs:
        builder.read_failures(str(file), _pieces(file))
    return builder.result(max_steps=max_steps, first_step=first_step, gpu_type=gpu_type)


def has_steps(file: Path, step_line: str | None = None) -> bool:
    """Return whether the readable part of a file contains a training step."""
    events = LogEvents(step_line)
    try:
        return any(
            isinstance(event, StepPrinted) for piece in _pieces(file) for event in events.feed(piece)
        ) or any(isinstance(event, StepPrinted) for event in events.finish())
    except (UserError, EOFError):
        return False


class Glance(NamedTuple):
    """The ranks that wrote a log, and the dates in it."""

    ranks: set[bytes]
    """Labels of ranks at the beginning of lines."""
    dates: list[bytes]
    """Dates as printed, such as `2026-05-12 10:01:00`, sorted."""


def glance(file: Path) -> Glance:
    """Find the ranks and dates in the first and last lines of a log. Raises UserError if unreadable."""
    first, last = b"", b""
    with suppress(EOFError):
        for piece in _pieces(file):
            first, last = first or piece, (last + piece)[-_PIECE_BYTES:]
    text = first if first == last else first + b"\n" + last
    ranks = {label for line in text.splitlines() if (label := writer_label(line)) is not None}
    return Glance(ranks, sorted(date.replace(b"T", b" ") for date in _DATE.findall(text)))


def _pieces(file: Path) -> Iterator[bytes]:
    try:
        yield from filter(None, unpack_log(file))
    except OSError as error:
        raise UserError(f"the log '{file}' cannot be read: {error.strerror or error}") from error


def _head_and_tail(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the bytes of a log; of one with more than MOST_LOG_BYTES, its beginning, a mark and its end."""
    size = os.fstat(stream.fileno()).st_size
    # A log that grows meanwhile is not read for ever.
    head = size if size <= MOST_LOG_BYTES else LOG_HEAD_BYTES
    yield from _bytes(stream, head)
    if size > MOST_LOG_BYTES:
        yield left_out_mark(size - MOST_LOG_BYTES)
        stream.seek(-LOG_TAIL_BYTES, os.SEEK_END)
        yield from _bytes(stream, LOG_TAIL_BYTES)


def _bytes(stream: BinaryIO, count: int) -> Iterator[bytes]:
    while count > 0 and (piece := stream.read(min(_PIECE_BYTES, count))):
        yield piece
        count -= len(piece)


def unpack_log(file: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes of a log, at most MOST_LOG_BYTES and a line for what is left out.

    For a damaged archive, and one that unpacks to more, raises EOFError after the readable part. Raises
    OSError for what is not a regular file.
    """
    with open_regular(file) as stream:
        if file.suffix not in _UNPACKERS:
            yield from _head_and_tail(stream)
            return
        unpacked = 0
        for piece in decompressed(stream, file.suffix):
            yield piece
            unpacked += len(piece)
            if unpacked > MOST_LOG_BYTES:
                raise EOFError(f"it unpacks to more than {MOST_LOG_BYTES >> 20} MiB, and is not read further")


def decompressed(
    stream: BinaryIO, suffix: str, most_packed_bytes: int = _MOST_PACKED_BYTES
) -> Iterator[bytes]:
    """Yield the decompressed pieces of `.gz` or `.zst` data.

    A piece comes from at most `most_packed_bytes`, which can unpack to 32,768 times as much. Raises EOFError
    after what could be read of damaged or truncated data.
    """
    new_unpacker = _UNPACKERS[suffix]
    unpacker, size = new_unpacker(), _LEAST_PACKED_BYTES
    while packed := unpacker.unused_data or stream.read(size):
        if unpacker.eof:  # archives may be put together from several
            unpacker = new_unpacker()
        try:
            piece = unpacker.decompress(packed)
        except (isal_zlib.IsalError, zstandard.ZstdError) as error:  # type: ignore[misc]  # isal's stub
            raise EOFError(f"its content is not valid {suffix} data") from error
        yield piece
        # Repeated lines pack to a thousandth and less, which should not be unpacked at once.
        size = size // 2 if len(piece) > _PIECE_BYTES else size * 2
        size = max(_LEAST_PACKED_BYTES, min(size, most_packed_bytes))
    if not unpacker.eof:
        raise EOFError("the compressed data ends too early")
