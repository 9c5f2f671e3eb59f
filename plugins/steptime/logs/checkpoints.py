"""Checkpoint lines of NeMo, Lightning, Megatron-LM and Megatron-Bridge, and the checkpoints in them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple

from steptime.frozen import Frozen
from steptime.logs.training_log import CheckpointTiming
from steptime.recipes.config_files import load_yaml_model

CHECKPOINT_WORDS = (b"heckpoint ",)

Phase = Literal["begun", "waited", "scheduled", "ended"]


class _Form(Frozen):
    kind: str
    phase: Phase
    form: str


class _Forms(Frozen):
    forms: tuple[_Form, ...]
    values: dict[str, str]

    def pattern(self, form: str) -> re.Pattern[bytes]:
        text = re.escape(form).replace(r"\ ", r"\s*").replace(r"\[", "(?:").replace(r"\]", ")?")
        named = re.sub(r"\\{(\w+)\\}", lambda name: f"(?P<{name[1]}>{self.values[name[1]]})", text)
        return re.compile(named.encode())


_FORMS = load_yaml_model(Path(__file__).with_name("checkpoints.yaml"), _Forms)
_PATTERNS = [(_FORMS.pattern(form.form), form) for form in _FORMS.forms]
_NUMBERS = ("rank", "iteration", "unix", "seconds", "milliseconds")
_DATE = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?")
_DATE_REACH = 500
"""Bytes before a text that are searched for its date: a line of garbage may be a mebibyte long."""


class CheckpointLine(NamedTuple):
    """What one log line says about saving or loading one checkpoint."""

    form: _Form
    text: bytes
    numbers: dict[str, float]
    """Numbers by name. `date` is the timestamp before the text, in seconds of the log's clock."""


class Checkpoint(NamedTuple):
    """The timing of a checkpoint, and whether its save was left unfinished."""

    timing: CheckpointTiming
    unfinished: bool


def read_checkpoints(line: bytes) -> list[CheckpointLine]:
    """Parse what a log line says about saving or loading checkpoints; empty if it says nothing."""
    lines = []
    for pattern, form in _PATTERNS:
        for match in pattern.finditer(line):
            values = match.groupdict()
            numbers = {name: float(values[name]) for name in _NUMBERS if values.get(name)}
            for date in _DATE.findall(line[max(0, match.start() - _DATE_REACH) : match.start()])[-1:]:
                with suppress(ValueError):  # there is no such day
                    numbers["date"] = datetime.fromisoformat(f"{date.decode()}+00:00").timestamp()
            lines.append((match.start(), CheckpointLine(form, match[0], numbers)))
    return [line for _, line in sorted(lines, key=itemgetter(0))]


def assemble_checkpoints(lines: Sequence[CheckpointLine], record: object = None) -> list[Checkpoint]:
    """Assemble the checkpoints of one attempt from their lines, in order of their start.

    If every rank prints a line, the lowest rank's counts; repeated lines count once. The trainer's own
    `record` has the duration of asynchronous saves, if it has an entry for each save.
    """
    writer = min((line.numbers["rank"] for line in lines if "rank" in line.numbers), default=None)
    checkpoints: list[dict[Phase, CheckpointLine]] = []
    of_kind: defaultdict[str, list[dict[Phase, CheckpointLine]]] = defaultdict(list)
    ended: Counter[_Form] = Counter()
    text = b""
    for line in lines:
        if line.numbers.get("rank", writer) != writer or line.text == text:
            continue
        form, text = line.form, line.text
        known = of_kind[form.kind]
        matching = [last for last in known[-1:] if form.phase not in last and form.phase != "begun"]
        if form.phase == "ended":
            matching = known[ended[form] : ended[form] + 1]
            ended[form] += 1
        phases = matching[0] if matching else {}
        if not matching:
            checkpoints.append(phases)
            known.append(phases)
        if form.phase not in phases or "unix" in line.numbers:
            phases[form.phase] = line
    transfers = (
        [transfer for transfer in record if isinstance(transfer, dict)] if isinstance(record, list) else []
    )
    recorded = [transfer.get("duration_s") for transfer in transfers if transfer.get("kind") == "save"]
    left = iter(recorded if len(recorded) == len(of_kind["save"]) else [])
    return [_checkpoint(phases, left) for phases in checkpoints]


def _checkpoint(phases: dict[Phase, CheckpointLine], recorded_s: Iterator[object]) -> Checkpoint:
    numbers: dict[str, float] = {}
    for phase in ("ended", "scheduled", "begun", "waited"):
        numbers |= phases[phase].numbers if phase in phases else {}
    kind = next(iter(phases.values())).form.kind
    first, last = phases.get("begun") or phases.get("waited"), phases.get("ended")
    # NeMo prints the end of asynchronous saves alone, Megatron of all.
    asynchronous = "scheduled" in phases or (
        last is not None and last.text.startswith((b"Async", b"Success"))
    )
    blocked_s = numbers.get("seconds")
    if "milliseconds" in numbers:
        blocked_s = round(numbers["milliseconds"] / 1000, 5)
    duration_s, exact_s = blocked_s, next(recorded_s, None) if kind == "save" else None
    if asynchronous and isinstance(exact_s, int | float):
        duration_s = float(exact_s)
    elif asynchronous or blocked_s is None:
        duration_s = _elapsed_s(first, last, blocked_s or 0.0) if first and last else None
    timing = CheckpointTiming(
        kind=kind,
        iteration=int(numbers["iteration"]) if "iteration" in numbers else None,
        started_at=first.numbers.get("unix") if first else None,
        duration_s=duration_s,
        blocked_s=blocked_s if asynchronous else duration_s,
        asynchronous=asynchronous,
    )
    return Checkpoint(timing, unfinished="scheduled" in phases and last is None)


def _elapsed_s(first: CheckpointLine, last: CheckpointLine, blocked_s: float) -> float | None:
    """Return the seconds between two lines by their timestamps; None if these do not show it."""
    for clock in ("unix", "date"):
        if clock in first.numbers and clock in last.numbers:
            seconds, digits = last.numbers[clock] - first.numbers[clock], 3
            if clock == "date":
                digits = 0 if seconds.is_integer() else 3
                if first.form.phase == "waited":  # NeMo prints that after it waited
                    seconds += blocked_s
            return round(seconds, digits) if seconds >= 0.5 * 10.0**-digits else None
    return None
