"""The formats in which training frameworks print steps, and those that a workload's file describes."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from steptime.logs.training_log import Step
from steptime.recipes.step_lines import parse_step_line

COUNT = rb"\d{1,15}(?!\d)"
"""Regular expression for a printed step number; a number with more digits is not a step."""

NUMBER = rb"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf))"
"""Regular expression for a number as trainers print it: `49`, `2.693`, `1.249e+03`, `2e+3`, `nan`."""

_SCALES = {b"K": 1e3, b"M": 1e6, b"G": 1e9, b"T": 1e12}
_SCALE = rb"[KMGT](?![A-Za-z0-9_/])"
"""What nanotron prints behind a number: `1.46K` is 1460."""
_FIRST_NUMBER = re.compile(rb"\s*(" + NUMBER + rb")(?:(?P<comma>,\d)|(?P<scale>" + _SCALE + rb"))?")

_TERMINAL_CODE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_LABEL = re.compile(
    rb"\s{0,8}(?:\[?20\d\d-\d\d-\d\d[T ][\d:.,]{8,30}Z?\]?:? )?(?:\d{1,3}(?:\.\d{1,3}){3}: )?"
    rb"(?:(?P<srun>\d{1,9}): |(?P<pod>[^\s/]{1,200}/\d{1,9}) |\[\d{1,9},(?P<mpi>\d{1,9})\]<std(?:out|err)>: ?"
    rb"|\((?P<ray>\w{1,100} pid=\d{1,9}[^)]{0,100})\) )?"
    rb"(?:\[default(?P<local>\d{1,9})\]:? ?)?(?:\[rank(?P<rank>\d{1,9})\]:?)?"
)
"""Prefixes of srun (`3: `), pods (`pod-7/2 `), mpirun (`[1,3]<stdout>:`), Ray and torch (`[rank3]:`).

A time or an address may come before.
"""
_RANK_TAG = re.compile(rb"\[(?:rank|RANK:)(\d{1,9})\]")
_RANK_TAG_WITHIN = 160
"""Bytes at a line's beginning in which loggers of programs put torch's tag behind their own words."""

_TOO_LONG = 16
"""Integers with this many digits may be too large."""
_LARGEST_COUNT = 2**53
"""Above this, a float does not distinguish neighbouring integers."""
_MAX_RECORD_BYTES = 4096
"""Longest text of a step; what follows is other text in the same line."""

Values = dict[str, bytes]
"""The printed values of a step, by quantity: a key of `READERS`, a counter, or another such as `iterations`.

`with_comma` is the text of a field whose number has a comma: it is not read, as `6,00` would become 6.
"""
NotFinite = dict[str, float]
"""The `loss` and the `gradient norm` of a step, as far as they are NaN or infinite."""


@dataclass(frozen=True, eq=False)
class LogFormat:
    """The form of one framework's step lines; each line is parsed by itself."""

    name: str
    words: tuple[bytes, ...]
    """Byte strings, at least one of which is in every step line; long and rare ones are fastest."""
    start: re.Pattern[bytes]
    """Where a step begins; its named groups are quantities."""
    fields: Mapping[bytes, str]
    """Names of the fields that follow, with the quantity that each contains."""
    units: Mapping[bytes, str] = field(default_factory=dict)
    """Units at the end of names that `fields` lacks, such as `(TFLOP/s/GPU)`, with the quantity."""
    separator: bytes = b"|"
    """Separates fields."""
    assignment: bytes = b":"
    """Separates a field's name from its number."""
    is_closed: bool = False
    """Whether a separator follows the last field, too: a field without one is cut and not read."""
    counters: tuple[str, ...] = ("iteration",)
    """Quantities that count steps; the first one printed counts. A line without any belongs to the next step.
    """
    first: int = 0
    """The number printed for global step 0."""
    redraws: bool = False
    """Whether a step is printed repeatedly by design, as by a progress bar."""

    def find(self, line: bytes) -> Iterator[tuple[bytes, Values]]:
        """Yield each step in a log line: its own text and its printed values.

        There are several if line breaks were lost, and none if the line only resembles a step. The line must
        have no terminal codes and no truncated number at its end.
        """
        match = self.start.search(line)
        while match:
            following = self.start.search(line, match.end())
            end = len(line) if following is None else following.start()
            text = line[match.start() : min(end, match.start() + _MAX_RECORD_BYTES)]
            values = self.values(text)
            values.update((name, value) for name, value in match.groupdict().items() if value is not None)
            yield text, values
            match = following

    def values(self, text: bytes) -> Values:
        """Return the values of the fields in `text`, by quantity; if a field is repeated, its first value."""
        values: Values = {}
        by_unit: Values = {}
        pairs = text.split(self.separator)
        for pair in reversed(pairs[:-1] if self.is_closed else pairs):
            name, _, value = pair.partition(self.assignment)
            name = name.strip()
            quantity, of_line = self.fields.get(name), values
            if quantity is None and self.units:
                quantity, of_line = self.units.get(name[name.rfind(b"(") :]), by_unit
            if quantity is None:
                continue
            try:
                float(value)
            except ValueError:
                number = _FIRST_NUMBER.match(value)
                if number is None:
                    continue
                if number["comma"]:
                    values["with_comma"] = pair.strip()
                    continue
            of_line[quantity] = value
        return by_unit | values if by_unit else values

    def number(self, values: Values) -> int | None:
        """Return the global step of a line's values.

        None if the line has no step number; its values then belong to the step that is printed next.
        """
        for name in self.counters:
            if (count := whole(values.get(name))) is not None:
                return count - self.first
        return None

    def printed(self, number: int, values: Values, label: bytes | None, text: bytes) -> "StepPrinted":
        """Return a step as one line prints it, given its number, its values, and the line's writer."""
        return _step_reader(self, tuple(values)).read(number, tuple(values.values()), label, text)


class StepPrinted(NamedTuple):
    """A step in a log line; the log may print it several times."""

    log_format: LogFormat
    step: Step
    not_finite: NotFinite
    label: bytes | None
    """Label of the writer, if printed."""
    text: bytes
    """The step's own text; equal if a line is printed again."""
    last_step: int | None = None
    """The run's last global step, if the line has it."""
    done: int | None = None
    """Number of finished iterations, if the line has it."""
    is_late: bool = False
    """Whether the step was printed earlier in the log, and is only counted now."""


def real(text: bytes | None) -> float | None:
    """Parse the number at the start of `text`, including NaN, infinity and `1.46K`; None if there is none."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        number = _FIRST_NUMBER.match(text)
        return float(number[1]) * _SCALES.get(number["scale"], 1) if number else None


def whole(text: bytes | None) -> int | None:
    """Parse a printed integer, also `99.00` or `2e+3`; None for NaN and for impossibly large numbers."""
    if text is not None and (digits := text.strip()).isdigit() and len(digits) < _TOO_LONG:
        return int(digits)
    number = real(text)
    return int(number) if number is not None and abs(number) <= _LARGEST_COUNT else None


def milliseconds(text: bytes | None) -> float | None:
    """Convert milliseconds to seconds in exactly the printed digits: 20289.1 ms are 20.2891 s.

    None if the text does not begin with a number.
    """
    try:
        return None if text is None else float(text.strip() + b"e-3")
    except ValueError:
        number = real(text)
        return None if number is None else float(Decimal(repr(number)).scaleb(-3))


def grouped(text: bytes | None) -> float | None:
    """Parse a number with optional thousands separators: `7,282` is 7282; None if there is no number."""
    return None if text is None else real(text.replace(b",", b""))


def gibibytes(text: bytes | None) -> int | None:
    """Convert a printed number of GiB to bytes; None for NaN and for impossible sizes."""
    number = real(text)
    return round(number * 2**30) if number is not None and abs(number) * 2**30 <= _LARGEST_COUNT else None


READERS: dict[str, tuple[str, Callable[[bytes | None], Any]]] = {
    "rounded_step_time_s": ("step_time_s", real),
    "step_time_ms": ("step_time_s", milliseconds),
    "peak_memory_gib": ("peak_memory_bytes", gibibytes),
    "grouped_tflops": ("tflops_per_gpu", grouped),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu", grouped),
    **{
        name: (name, real)
        for name in ("step_time_s", "wall_time_s", "loss", "learning_rate", "tflops_per_gpu")
    },
    **{name: (name, whole) for name in ("global_batch_size", "consumed_samples", "peak_memory_bytes")},
}
"""The field of `Step` for each quantity, and the function that reads it."""

_IMPRECISE = {"rounded_step_time_s"}
"""Quantities that do not count if a line has another one for the same field."""


class StepReader:
    """Converts the printed values of step lines of which each has the same quantities at the same places."""

    def __init__(self, log_format: LogFormat, places: Mapping[str, int]) -> None:
        chosen: dict[str, str] = {}
        for name in places:
            if name in READERS and (READERS[name][0] not in chosen or name not in _IMPRECISE):
                chosen[READERS[name][0]] = name
        self._log_format = log_format
        self._fields = [(field, places[name], READERS[name][1]) for field, name in chosen.items()]
        self._grad_norm, self._nan_iterations = places.get("grad_norm"), places.get("nan_iterations")
        self._iteration, self._iterations = places.get("iteration"), places.get("iterations")

    def read(self, number: int, values: Sequence[bytes], label: bytes | None, text: bytes) -> StepPrinted:
        """Return the step that a line prints, given its number, its values, and the line's writer."""
        step = Step(number, **{field: read(values[place]) for field, place, read in self._fields})
        if self._nan_iterations is not None and whole(values[self._nan_iterations]):
            step.loss = math.nan  # Megatron leaves a loss that is no number out of its line
        not_finite: NotFinite = {}
        if step.loss is not None and not math.isfinite(step.loss):
            not_finite["loss"] = step.loss
        norm = None if self._grad_norm is None else real(values[self._grad_norm])
        if norm is not None and not math.isfinite(norm):
            not_finite["gradient norm"] = norm
        last_step = done = None
        if self._iteration is not None and self._iterations is not None:
            # The total counts from the start of the epoch or job, and is not the last global step.
            iteration = int(values[self._iteration])
            last_step = number + int(values[self._iterations]) - iteration
            done = iteration - self._log_format.first + 1
        return StepPrinted(self._log_format, step, not_finite, label, text, last_step, done)


@lru_cache(maxsize=1024)
def _step_reader(log_format: LogFormat, names: tuple[str, ...]) -> StepReader:
    """Return the reader for values of these quantities in this order."""
    return StepReader(log_format, {name: place for place, name in enumerate(names)})


def plain(line: bytes) -> bytes:
    """Return the line without terminal control codes."""
    return _TERMINAL_CODE.sub(b"", line) if b"\x1b" in line else line


def writer_label(line: bytes) -> bytes | None:
    """Return the label of a line's writer, its rank if that is known; None if the line has none."""
    label = _LABEL.match(line)
    if label is None:
        return None
    rank = label["rank"] or label["srun"] or label["mpi"]
    if not rank and (tag := _RANK_TAG.search(line, 0, _RANK_TAG_WITHIN)):
        rank = tag[1]
    if rank or not label["pod"]:
        return rank or label["ray"] or label["local"]
    return label["pod"] + b" " + label["local"] if label["local"] else label["pod"]


_NEMO_FIELDS = {
    b"global_step": "global_step",
    b"train_step_timing in s": "step_time_s",
    b"reduced_train_loss": "loss",
    b"lr": "learning_rate",
    b"global_batch_size": "global_batch_size",
    b"consumed_samples": "consumed_samples",
    b"TFLOPS_per_GPU": "tflops_per_gpu",
    b"tflops_per_sec_per_gpu": "tflops_per_gpu",
    b"peak_memory_usage": "peak_memory_bytes",
    b"max_memory_allocated": "peak_memory_bytes",
    b"wall_step_timing in s": "wall_time_s",
}

NEMO2 = LogFormat(
    name="nemo2",
    words=(b"Training epoch ",),
    start=re.compile(
        rb"Training epoch \d+, iteration (?P<iteration>" + COUNT + rb")(?:/(?P<iterations>" + COUNT + rb"))?"
    ),
    fields=_NEMO_FIELDS | {b"grad_norm": "grad_norm"},
    counters=("global_step", "iteration"),
)
"""NeMo 2: `Training epoch 0, iteration 49/49 | … | global_step: 49 | … | train_step_timing in s: 2.693 | …`.

Printed by NeMo's ProgressPrinter (nemo/lightning/pytorch/callbacks/progress_printer.py); order and number of
the fields differ between releases, and the first steps lack some. The global step counts; if it is not
printed, the iteration.
"""

MEGATRON_BRIDGE = LogFormat(
    name="megatron_bridge",
    words=(b"elapsed time per iteration", b"GPU utilization: "),
    start=re.compile(
        rb"(?:Step Time\s*:\s*(?P<rounded_step_time_s>" + NUMBER + rb")\s*s\s*)?"
        rb"GPU utilization:\s*(?P<tflops_per_gpu>" + NUMBER + rb")\s*(?:MODEL_)?TFLOP|"
        rb"iteration\s+(?P<iteration>" + COUNT + rb")\s*/\s*(?P<iterations>" + COUNT + rb")\s*\|"
    ),
    fields={
        b"elapsed time per iteration (ms)": "step_time_ms",
        b"elapsed time per iteration (s)": "step_time_s",
        b"lm loss": "loss",
        b"learning rate": "learning_rate",
        b"global batch size": "global_batch_size",
        b"consumed samples": "consumed_samples",
        b"throughput per GPU (TFLOP/s/GPU)": "tflops_per_gpu",
        b"TFLOPs": "tflops_per_gpu",
        b"grad norm": "grad_norm",
        b"number of nan iterations": "nan_iterations",
    },
    is_closed=True,
    units={b"(TFLOP/s/GPU)": "tflops_per_gpu", b"(tokens/s/GPU)": "tokens_per_s_per_gpu"},
    first=1,
)
"""Megatron-Bridge, Megatron-LM and Megatron-DeepSpeed: steps are counted from 1.

Megatron-Bridge prints `Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU` on rank 0 and then, like
the others, `iteration        1/       1 | … | elapsed time per iteration (ms): 20289.1 | …` on the last
rank. The step time is the mean over the interval between two `iteration` lines. The line of rank 0 has no
number: it belongs to the step of the next `iteration` line, or, in the log of rank 0 alone, is a step.
"""

_GROUPED = rb"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|" + NUMBER + rb")"
_TORCHTITAN_FIELD = re.compile(
    rb"(?<![A-Za-z_])(?:(loss|grad_norm):\s*("
    + NUMBER
    + rb")|(tps|tflops):\s*("
    + _GROUPED
    + rb")|memory:\s*("
    + NUMBER
    + rb")GiB)"
)

_NO_LOSS = -1.0
"""What torchtitan prints for a loss where it has none: in all stages of a pipeline but the last."""


class _TorchTitan(LogFormat):
    def values(self, text: bytes) -> Values:
        """Parse the blank-separated fields; the first of a repeated name counts."""
        values = {
            self.fields[name or rate or b"memory"]: value or size or memory
            for name, value, rate, size, memory in reversed(_TORCHTITAN_FIELD.findall(text))
        }
        if real(values.get("loss")) == _NO_LOSS:
            del values["loss"]
        return values


TORCHTITAN = _TorchTitan(
    name="torchtitan",
    words=(b"tps: ",),
    start=re.compile(rb"(?<![A-Za-z_])(?<!validate )step:\s*(?P<iteration>" + COUNT + rb")\s"),
    fields={
        b"loss": "loss",
        b"grad_norm": "grad_norm",
        b"tps": "tokens_per_s_per_gpu",
        b"tflops": "grouped_tflops",
        b"memory": "peak_memory_gib",
    },
    first=1,
)
"""torchtitan: `step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282 …`.

Each rank prints one line per step, counted from 1, in colour on a terminal. It has tokens per second and
device (`tps`) but no step time, which is derived if the log has the lines that `read_setup` parses.
"""

SETUP_WORDS = (b"Trainer is initialized with ", b" device mesh with ")
_TOTAL_STEPS = re.compile(rb"total steps (\d{1,15})")
_TOKENS = re.compile(rb"(\d{1,18}) tokens per train step")
_SAMPLES = re.compile(rb"global batch size (\d{1,12}),.*sequence length (\d{1,12})")
_MESH = re.compile(rb"device mesh with (?:parallelism:(?P<ways>.*)|\[[^\]]*\], \[(?P<sizes>[\d, ]*)\])")
_WAY = re.compile(rb"\b(?:pp|dp_replicate|dp_shard|cp|tp)=(\d{1,9})")


class Setup(NamedTuple):
    """What torchtitan prints about a run before its first step; None for values missing in the line."""

    last_step: int | None = None
    """The last global step to be trained."""
    tokens_per_step: int | None = None
    """Tokens per step over all GPUs."""
    gpus: int | None = None


def read_setup(line: bytes) -> list[Setup]:
    """Parse torchtitan's line about total steps and tokens, or about its device mesh."""
    if mesh := _MESH.search(line):
        sizes = _WAY.findall(mesh["ways"]) if mesh["ways"] else re.findall(rb"\d{1,9}", mesh["sizes"])
        return [Setup(gpus=math.prod(map(int, sizes)) or None)]
    total, tokens, samples = _TOTAL_STEPS.search(line), _TOKENS.search(line), _SAMPLES.search(line)
    size = [tokens[1]] if tokens else samples.groups() if samples else [b"0"]
    return [Setup(int(total[1]) - 1 if total else None, math.prod(map(int, size)) or None)]


_TQDM_COUNT = re.compile(rb"(?<!\d)(" + COUNT + rb")(?:/(?:(" + COUNT + rb")|\?)|it)\s*\[")
_ROUNDED = re.compile(rb"\d+(?:\.(\d*))?[eE]\+?(\d{1,2})")


class _Tqdm(LogFormat):
    def find(self, line: bytes) -> Iterator[tuple[bytes, Values]]:
        """Yield the steps of a line; a bar without `global_step` (before the first step) has none."""
        for text, _ in super().find(line):
            bar = _TQDM_COUNT.search(text)
            postfix = text[bar.end() :] if bar else text
            values = self.values(postfix)
            printed = whole(values.get("global_step"))
            if printed is None and "with_comma" not in values:
                continue
            if bar:
                done = int(bar[1]) - 1
                if printed is None or abs(done - printed) <= _rounding(values["global_step"]):
                    values["global_step"] = b"%d" % done  # the bar does not round
                if bar[2]:
                    values |= {"iteration": b"%d" % done, "iterations": b"%d" % (int(bar[2]) - 1)}
            # What follows the count's bracket is the clock, which differs when a bar is drawn again.
            yield postfix.partition(b",")[2], values


def _rounding(printed: bytes) -> float:
    """Return the largest rounding error of a printed number: 500 for `2e+3`, 0 for `99.00`."""
    match = _ROUNDED.fullmatch(printed)
    return 0.0 if match is None else 0.5 * 10.0 ** (int(match[2]) - len(match[1] or b""))


TQDM = _Tqdm(
    name="tqdm",
    words=(b"Epoch ",),
    start=re.compile(rb"Epoch\s+\d+\s*:"),
    fields=_NEMO_FIELDS,
    separator=b", ",
    assignment=b"=",
    counters=("global_step",),
    redraws=True,
)
"""A tqdm bar: `Epoch 0: : 100%|██| 100/100 [07:57<00:00, …, global_step=99.00, …]`.

NeMo Framework Launcher (24.11) redraws it behind a carriage return. It rounds numbers: step 1999 reads
`2e+3`. Without a total it is `7/?` or `7it`.
"""

FORMATS = (NEMO2, TQDM, MEGATRON_BRIDGE, TORCHTITAN)
"""The formats of frameworks, of which each log has one."""

_SCALED, _GROUPED_SCALED = (rb"(?>%s)(?:%s)?" % (number, _SCALE) for number in (NUMBER, _GROUPED))
"""A number up to its last digit, however the pattern goes on, and its scale."""
_SECOND = rb"s(?:ecs?|econds?)?"
_OTHER_UNITS = rb"[un]" + _SECOND + rb"|micro" + _SECOND + rb"|m|min(?:ute)?s?|h|hours?"
_WORDS = {
    "step": ("iteration", COUNT),
    "step_from_1": ("iteration", COUNT),
    "s": ("step_time_s", _SCALED + rb"(?! ?(?:m(?:illi)?" + _SECOND + rb"|" + _OTHER_UNITS + rb")\b)"),
    "ms": ("step_time_ms", _SCALED + rb"(?! ?(?:" + _SECOND + rb"|" + _OTHER_UNITS + rb")\b)"),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu", _GROUPED_SCALED),
    "tflops_per_gpu": ("grouped_tflops", _GROUPED_SCALED),
    "memory_gib": ("peak_memory_gib", rb"(?>" + NUMBER + rb")(?! ?[KMT]i?B?\b)"),
    **{word: (word, _SCALED) for word in ("loss", "grad_norm", "learning_rate")},
}
"""The quantity and the printed form of each word of a `step_line`: a number in another unit is none."""
_ANY_TEXT = rb".{0,1000}?"


@lru_cache(maxsize=16)
def formats_of(step_line: str | None) -> tuple[LogFormat, ...]:
    """Return the formats that a log can have: the one of `step_line` (`recipes.step_lines`), or all others.

    Raises ValueError for a `step_line` that cannot be read.
    """
    if step_line is None:
        return FORMATS
    form = parse_step_line(step_line)
    pattern = b""
    for (text, word), (after, _) in pairwise((*form.pieces, ("", None))):
        pattern += rb"[ \t]+".join(re.escape(part).encode() for part in text.split(" "))
        if word == "...":
            pattern += _ANY_TEXT
        elif word is not None:
            quantity, printed = _WORDS[word]
            pattern += b"[ \t]*(?P<%s>%s)" % (quantity.encode(), printed)
            if not after.startswith(","):
                pattern += rb"(?!,\d)"  # whether it is one and a half or thousands is not known
    return (
        LogFormat(
            name="step_line",
            words=(form.fixed.encode(),),
            start=re.compile(pattern),
            fields={},
            first=form.first,
        ),
    )
