"""Checkpoint lines of NeMo, Lightning, Megatron-LM and Megatron-Bridge, and the checkpoints they tell of."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple

from steptime.frozen import Frozen
from steptime.logs.models import CheckpointTiming
from steptime.recipes.config_files import load_yaml_model

_ENDS = (b"Save", b"Load", b"save ", b"from ", b"at ", b"....")
WORDS = tuple(b"heckpoint " + end for end in _ENDS)

Said = Literal["begun", "waited", "scheduled", "ended"]


class _Form(Frozen):
    kind: str
    said: Said
    form: str


class _Forms(Frozen):
    forms: tuple[_Form, ...]
    values: dict[str, str]

    def pattern(self, form: str) -> re.Pattern[bytes]:
        text = re.escape(form).replace(r"\ ", r"\s*").replace(r"\[", "(?:").replace(r"\]", ")?")
        named = re.sub(r"\\{(\w+)\\}", lambda name: f"(?P<{name[1]}>{self.values[name[1]]})", text)
        return re.compile(named.encode())


_FORMS = load_yaml_model(Path(__file__).with_name("checkpoints.yaml"), _Forms)
_PATTERNS = [(_FORMS.pattern(each.form), each) for each in _FORMS.forms]
_NUMBERS = ("rank", "iteration", "unix", "seconds", "milliseconds")
_DATE = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?")
_DATE_REACH = 500
"""Bytes before a text in which its date is looked for: a line of garbage may be a mebibyte long."""


class CheckpointLine(NamedTuple):
    """What one line says of one checkpoint."""

    form: _Form
    text: bytes
    numbers: dict[str, float]
    """By name; `date` is that before the text, in seconds on the log's own clock."""


class Checkpoint(NamedTuple):
    """A checkpoint, and whether it was left in the middle."""

    timing: CheckpointTiming
    unfinished: bool


def read_checkpoints(line: bytes) -> list[CheckpointLine]:
    """What a line says of checkpoints."""
    found = []
    for pattern, form in _PATTERNS:
        for match in pattern.finditer(line):
            values = match.groupdict()
            numbers = {name: float(values[name]) for name in _NUMBERS if values.get(name)}
            if dates := _DATE.findall(line[max(0, match.start() - _DATE_REACH) : match.start()]):
                numbers["date"] = _seconds(dates[-1])
            found.append((match.start(), CheckpointLine(form, match[0], numbers)))
    return [line for _, line in sorted(found, key=itemgetter(0))]


def checkpoints_of(lines: Sequence[CheckpointLine]) -> list[Checkpoint]:
    """The checkpoints of one attempt, in the order in which they began; asynchronous saves end in it, too.

    Where every rank prints a line the lowest rank's counts, and what is printed twice counts once.
    """
    writer = min((line.numbers["rank"] for line in lines if "rank" in line.numbers), default=None)
    checkpoints: list[dict[Said, CheckpointLine]] = []
    of_kind: defaultdict[str, list[dict[Said, CheckpointLine]]] = defaultdict(list)
    ended: Counter[_Form] = Counter()
    text = b""
    for line in lines:
        if line.numbers.get("rank", writer) != writer or line.text == text:
            continue
        form, text = line.form, line.text
        known = of_kind[form.kind]
        told: list[dict[Said, CheckpointLine]] = []
        if form.said == "ended":
            told = known[ended[form] : ended[form] + 1]
            ended[form] += 1
        elif form.said != "begun":
            told = [last for last in known[-1:] if form.said not in last]
        if not told:
            told = [{}]
            checkpoints += told
            known += told
        if form.said not in told[0] or "unix" in line.numbers:
            told[0][form.said] = line
    return [Checkpoint(_timing(said), "scheduled" in said and "ended" not in said) for said in checkpoints]


def measured(checkpoints: list[Checkpoint], record: object) -> list[Checkpoint]:
    """With the exact durations of asynchronous saves, where the trainer's own `record` has one a save."""
    transfers = [each for each in record if isinstance(each, dict)] if isinstance(record, list) else []
    durations = [each.get("duration_s") for each in transfers if each.get("kind") == "save"]
    saves = [at for at, (timing, _) in enumerate(checkpoints) if timing.kind == "save"]
    if len(durations) != len(saves):
        return checkpoints
    known = list(checkpoints)
    for at, seconds in zip(saves, durations, strict=True):
        if known[at].timing.asynchronous and isinstance(seconds, int | float):
            timing = known[at].timing.model_copy(update={"duration_s": float(seconds)})
            known[at] = known[at]._replace(timing=timing)
    return known


def _timing(said: dict[Said, CheckpointLine]) -> CheckpointTiming:
    numbers: dict[str, float] = {}
    for what in ("ended", "scheduled", "begun", "waited"):
        if what in said:
            numbers |= said[what].numbers
    first = said.get("begun") or said.get("waited")
    ended = said.get("ended")
    # NeMo prints the end of asynchronous saves alone, Megatron of all.
    asynchronous = "scheduled" in said or (
        ended is not None and ended.text.startswith((b"Async", b"Success"))
    )
    blocked_s = numbers.get("seconds")
    if "milliseconds" in numbers:
        blocked_s = round(numbers["milliseconds"] / 1000, 5)
    duration_s = _duration_s(said, blocked_s) if asynchronous or blocked_s is None else blocked_s
    return CheckpointTiming(
        kind=next(iter(said.values())).form.kind,
        iteration=int(numbers["iteration"]) if "iteration" in numbers else None,
        started_at=first.numbers.get("unix") if first else None,
        duration_s=duration_s,
        blocked_s=blocked_s if asynchronous or blocked_s is not None else duration_s,
        asynchronous=asynchronous,
    )


def _duration_s(said: dict[Said, CheckpointLine], blocked_s: float | None) -> float | None:
    """Seconds from the beginning to the end by the clocks of their lines; None where these do not tell."""
    first, last = said.get("begun") or said.get("waited"), said.get("ended")
    if first is None or last is None:
        return None
    began, ended, digits = first.numbers.get("unix"), last.numbers.get("unix"), 3
    if began is None or ended is None:
        began, ended = first.numbers.get("date"), last.numbers.get("date")
        if began is None or ended is None:
            return None
        digits = 0 if (ended - began).is_integer() else 3
        began -= (
            (blocked_s or 0.0) if first.form.said == "waited" else 0.0
        )  # NeMo prints that after it waited
    return round(ended - began, digits) if ended - began >= 0.5 * 10.0**-digits else None


def _seconds(date: bytes) -> float:
    """Seconds of a printed date; not a number where there is no such day."""
    try:
        return datetime.fromisoformat(f"{date.decode()}+00:00").timestamp()
    except ValueError:
        return math.nan
