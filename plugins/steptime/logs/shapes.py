"""Parse step lines quickly by the shapes of earlier lines.

Most step lines of a log differ from others only in their numbers. Once a format has parsed one field by
field, its `Shape` parses similar lines by one match of a regular expression. A line that differs otherwise,
such as one with a NaN or two lines glued together, does not match and is parsed field by field. Which number
is which value is found by trial: the format parses the line again with another number in each place.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from steptime.logs.formats import READERS, LogFormat, NotFinite, Values, grouped, steps
from steptime.logs.models import Step

_CODE = rb"\x1b\[[0-9;?]*[A-Za-z]"
_TERMINAL_CODE = re.compile(_CODE)
_DIGITS = re.compile(rb"(" + _CODE + rb"|\d+)")
_NUMBER = re.compile(
    rb"(" + _CODE + rb"|(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?"
    rb"|(?:(?<=[\s:=])[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d{1,2}(?!\d))?)"
)
_PADDING = re.compile(rb"(?:\\ ){2,}$")
_LABEL = re.compile(rb"\s{0,8}(?:(\d{1,9}): |\[(?:rank|default)(\d{1,9})\]:?|([^\s/]{1,200}/\d{1,9}) )")

_LONGEST_LINE, _LONGEST_HEAD = 1500, 150
_MOST_SHAPES, _MOST_TRIALS = 8, 32
_FROM_LINE = 64
"""To learn takes longer than to read some lines with care."""
_TRIED = 100_000_000
_COUNT = rb"[0-9]{1,15}+"
_REAL = rb"[-+]?+[0-9]{1,20}+(?:\.[0-9]{1,20}+)?+(?:[eE][-+]?+[0-9]{1,2}+)?+"
"""Neither NaN nor as large as infinity."""
_GROUPED = rb"(?:[0-9]{1,3}+(?:,[0-9]{3}){1,9}+(?![0-9,])(?:\.[0-9]{1,20}+)?+|" + _REAL + rb"(?!,[0-9]))"


class StepsPrinted(NamedTuple):
    """Consecutive steps in one format, as columns: each list has an entry per step."""

    log_format: LogFormat
    last_step: int | None
    """The run's last global step, if the lines have it."""
    numbers: list[int]
    labels: list[bytes | None]
    """Who printed it, if that is printed."""
    texts: list[bytes]
    """Its own text: equal if a line is only printed again."""
    read: Callable[[list[int]], list[Step]]
    """Gives the steps at some places of the lists."""
    not_finite: NotFinite
    """Of its only step."""
    done: int | None = None
    """Iterations that the line of its only step says are done, if it says so."""


def plain(line: bytes) -> bytes:
    """Return the line without terminal control codes."""
    return _TERMINAL_CODE.sub(b"", line) if b"\x1b" in line else line


def writer_label(line: bytes) -> bytes | None:
    """Return the label of a line's writer (`3` of srun's `3: `); None if the line has none."""
    label = _LABEL.match(line)
    return None if label is None else label[1] or label[2] or label[3]


@lru_cache(maxsize=1024)
def _label_of_head(head: bytes) -> bytes | None:
    return writer_label(plain(head))


class Shape(NamedTuple):
    """A step line's fixed text, and the meaning of each of its numbers."""

    log_format: LogFormat
    is_ahead: bool
    """Whether such lines are of the step that follows."""
    last_step: int | None
    pattern: bytes
    groups: dict[str, int]
    """Of the pattern of all shapes: `head`, `number`, `text` and `end`."""
    quantities: dict[str, int]
    """Likewise."""

    def printed(self, lines: list[re.Match[bytes]], ahead: dict[int, Values]) -> StepsPrinted:
        """Return the steps of lines with this shape, and what was printed before some of them."""
        head, count, text = self.groups["head"], self.groups["number"], self.groups["text"]
        numbers = [int(match[count]) - self.log_format.first for match in lines]

        def read(places: list[int]) -> list[Step]:
            chosen = [lines[place] for place in places]
            columns: dict[str, Sequence[bytes | None]] = {
                name: [match[group] for match in chosen] for name, group in self.quantities.items()
            }
            for name in set[str]().union(*ahead.values()) - columns.keys():
                columns[name] = [ahead.get(place, {}).get(name) for place in places]
            return steps([numbers[place] for place in places], columns)

        labels = [_label_of_head(match[head]) for match in lines]
        texts = [match[text] for match in lines]
        return StepsPrinted(self.log_format, self.last_step, numbers, labels, texts, read, {})


class Shapes:
    """The step-line patterns learned so far from one log, joined into one regular expression."""

    def __init__(self) -> None:
        self._shapes: list[Shape] = []
        self._lines = self._trials = 0
        self._compile()

    def _compile(self) -> None:
        alternatives = [shape.pattern + rb"\r?\n|" for shape in self._shapes]
        self.pattern = re.compile(b"".join(alternatives) + rb"[^\n]*\n")
        """Matches any line; its last group is a key of `by_group` if the line has a known shape."""
        self.by_group: dict[int | None, Shape] = {shape.groups["end"]: shape for shape in self._shapes}

    def learn(self, line: bytes, log_format: LogFormat) -> bool:
        """Learn the shape of a line unless limits are reached; return whether a shape was added."""
        self._lines += 1
        full = self._trials >= _MOST_TRIALS or len(self._shapes) >= _MOST_SHAPES
        if self._lines < _FROM_LINE or full or log_format.redraws or len(line) > _LONGEST_LINE:
            return False
        self._trials += 1
        shape = _shape(line, log_format, f"_{self._trials}", self.pattern.groups)
        if shape is not None:
            self._shapes.append(shape)
            self._compile()
        return shape is not None


def _shape(line: bytes, log_format: LogFormat, suffix: str, groups_before: int) -> Shape | None:
    """Return the shape of a line; None unless it has exactly one step with plain numbers."""
    found = list(log_format.find(plain(line)))
    text, values = found[0] if len(found) == 1 else (b"", {})
    begin = next((at for at in range(len(line), -1, -1) if plain(line[at:]) == text), len(line))
    if not text or begin > _LONGEST_HEAD or "with_comma" in values or log_format.step(0, values)[1]:
        return None
    body = _body_pattern(log_format, values, line[:begin], _NUMBER.split(line[begin:]))
    if body is None:
        return None
    shape = b"%b(?P<text>%b)(?P<end>)" % (_head_pattern(line[:begin]), body)
    match = re.fullmatch(shape, line)
    expected = {name: value.strip() for name, value in values.items() if name in READERS}
    if match is None or {name: match[name] for name in match.groupdict() if name in READERS} != expected:
        return None
    number = log_format.number(values)
    groups = {name: groups_before + group for name, group in match.re.groupindex.items()}
    return Shape(
        log_format,
        is_ahead=number is None,
        last_step=None if number is None else log_format.last_step(number, values),
        pattern=re.sub(rb"(?<=\(\?P[<=])(\w+)", rb"\1" + suffix.encode(), shape),
        groups=groups,
        quantities={name: group for name, group in groups.items() if name in READERS},
    )


def _body_pattern(log_format: LogFormat, values: Values, head: bytes, parts: Sequence[bytes]) -> bytes | None:
    """Return a pattern for texts that differ only in numbers; None if the numbers may differ in meaning.

    The format reads the text with another number in each place: the values that change show which number is
    which.
    """
    tried = [
        b"%d" % (_TRIED + at) if at % 2 and part[:1] != b"\x1b" else part for at, part in enumerate(parts)
    ]
    tries = list(log_format.find(plain(head + b"".join(tried))))
    if len(tries) != 1:
        return None
    quantities = {value.strip(): name for name, value in tries[0][1].items()}
    count = next((values[name].strip() for name in log_format.counters if name in values), b"")
    counter = b"(?P<number>%b%b)" % (rb"(?!0++[^0-9])" if log_format.first else b"", _COUNT)
    pattern: list[bytes] = []
    for part, number in zip(parts, tried, strict=True):
        name = quantities.get(number, "")
        if number is part or name in ("iterations", "nan_iterations"):
            pattern.append(_PADDING.sub(rb" {2,40}+", re.escape(part)))
        elif name in log_format.counters and part == count:
            pattern.append(b"(?P=number)" if counter in pattern else counter)
        elif name in log_format.counters and "iterations" in values:
            return None  # in a line of this look that has both equal the second is the run's last step
        elif name in READERS:
            form = _GROUPED if READERS[name][1] is grouped else _REAL
            pattern.append(b"(?P<%b>%b)" % (name.encode(), form))
        else:
            pattern.append(_COUNT if part.isdigit() else _REAL)
    return b"".join(pattern)


def _head_pattern(head: bytes) -> bytes:
    """Return a pattern for the text before a step; its group is the part that shows the label."""
    end = next(at for at in range(len(head) + 1) if _label_of_head(head[:at]) == _label_of_head(head))
    return b"(?P<head>%b)%b" % (_any_digits(head[:end]), _any_digits(head[end:]))


def _any_digits(text: bytes) -> bytes:
    parts = _DIGITS.split(text)
    return b"".join(rb"[0-9]{1,9}+" if part.isdigit() else re.escape(part) for part in parts)
