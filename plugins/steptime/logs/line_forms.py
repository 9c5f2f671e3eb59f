"""Read step lines quickly that differ from earlier ones in their digits alone.

A format's `find` alone decides what a step is. The form of a line is learned from its answers: which values
change with which digits? Lines of the same form are then read by one regular expression.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from steptime.logs.formats import LogFormat, StepPrinted, StepReader, Values, plain, whole, writer_label

_PIECE = re.compile(rb"\d+|\D")
_DIGITS = re.compile(rb"\d+")
_OTHER_DIGITS = bytes.maketrans(b"0123456789", b"1234567890")
_MOST_DIGITS = 15
"""Longest run of digits: with more, a step number is none, and a float may not be exact."""
_LONGEST_LINE, _MOST_RUNS = 1024, 64
"""Within these limits a line is never cut as too long, whatever digits it has."""
_CONSTANT = {"iterations", "nan_iterations"}
"""Quantities that are part of a form."""
_MOST_SHAPES, _MOST_TRIED = 256, 4
"""Shapes of lines that are kept, and forms that are tried on a line: trainers print one or two a step."""


class StepForm:
    """The form of a step line: in lines that have it, only the digits of numbers differ.

    Its values are finite. Totals and counts of iterations that were NaN are part of the form.
    """

    def __init__(
        self, log_format: LogFormat, pattern: bytes, groups: dict[str, int], counter: int | None
    ) -> None:
        self.log_format = log_format
        self.match = re.compile(pattern).match
        """Matches a line with its end; its first groups are the text before the step, and the step's own."""
        self.counter = counter
        """Group of the step's number; None if the line has none."""
        self._groups = groups
        self._reader = StepReader(log_format, {name: group - 1 for name, group in groups.items()})

    @classmethod
    def learn(cls, log_format: LogFormat, line: bytes) -> "StepForm | None":
        """Return the form of a line with one step; None if its values do not depend on digits alone."""
        values = _only_step(log_format, line)
        if not values or "with_comma" in values or len(line) > _LONGEST_LINE:
            return None
        if log_format.printed(0, values, None, line).not_finite:
            return None
        counter = next((name for name in log_format.counters if whole(values.get(name)) is not None), None)
        start = _start(log_format, line)
        probed = _probe(log_format, line, values)
        if (
            probed is None
            or (counter is not None and not values[counter].strip().isdigit())
            or label_of_prefix(line[:start]) != writer_label(plain(line))
        ):
            return None
        patterns, ends = probed
        begins = {end - len(values[name].strip()): name for name, end in ends.items()}
        groups: dict[str, int] = {}
        pattern = b"("
        for piece in _PIECE.finditer(line + b"\n"):
            at = piece.start()
            pattern += b")" * ((at in ends.values()) + (at == len(line))) + b")(" * (at == start)
            if at in begins:
                groups[begins[at]] = len(groups) + 3
                pattern += b"("
            pattern += patterns.get(at) or re.escape(piece[0])
        if groups.keys() != values.keys():  # a value without digits
            return None
        in_order = {name: groups[name] for name in values}
        form = cls(log_format, pattern, in_order, groups[counter] if counter else None)
        match = form.match(line + b"\n")
        printed = {name: value.strip() for name, value in values.items()}
        return form if match and form.values(match) == printed else None

    def values(self, match: re.Match[bytes]) -> Values:
        """Return the printed values of a line that matched."""
        return {name: match[group] for name, group in self._groups.items()}

    def printed(self, number: int, match: re.Match[bytes], ahead: Values | None = None) -> StepPrinted:
        """Return the step of a line that matched, given its number and the values printed ahead of it."""
        groups = match.groups()
        label, text = label_of_prefix(groups[0]), plain(groups[1])
        if ahead:
            return self.log_format.printed(number, ahead | self.values(match), label, text)
        return self._reader.read(number, groups, label, text)


class RepeatedStep(NamedTuple):
    """Lines that follow a step's line and print the same step in the same form, as other ranks do.

    Their values are only converted where that matters.
    """

    form: StepForm
    number: int
    """The global step."""
    matches: list[re.Match[bytes]]
    """The match of each line with the form."""


class KnownForms:
    """The forms of a log's step lines. One is learned when its second line is read."""

    def __init__(self) -> None:
        self._forms: dict[bytes, StepForm | None] = {}
        self._seen: set[bytes] = set()
        self.tried: list[StepForm] = []
        """The forms that are tried on a line, the last learned or seen first."""

    def note(self, log_format: LogFormat, line: bytes) -> bool:
        """Note a line that was read by `find`; return whether lines that follow may have a known form."""
        shape = _DIGITS.sub(b"0", line)
        if shape not in self._seen:
            if len(self._seen) >= _MOST_SHAPES:
                self._seen.clear()
                self._forms.clear()
            self._seen.add(shape)
            return bool(self.tried)
        if shape not in self._forms:
            self._forms[shape] = StepForm.learn(log_format, line)
        if form := self._forms[shape]:
            others = [other for other in self.tried if other is not form]
            self.tried = [form, *others][:_MOST_TRIED]
        return bool(self.tried)

    def steps(self, block: bytes, begin: int) -> Iterator[tuple[StepForm, list[re.Match[bytes]]]]:
        """Match the lines of a block from a position to the first line of no known form.

        Yields successive lines that print the same step together, and each line without a step number alone.
        """
        is_known = True
        while is_known:
            is_known = False
            for form in self.tried:
                counter, number = form.counter, b""
                lines: list[re.Match[bytes]] = []
                while match := form.match(block, begin):
                    begin = match.end()
                    if lines and (counter is None or match[counter] != number):
                        yield form, lines
                        lines = []
                    if not lines and counter is not None:
                        number = match[counter]
                    lines.append(match)
                if lines:
                    is_known = True
                    yield form, lines


def has_forms(log_format: LogFormat) -> bool:
    """Return whether forms of a format's lines are learned: not of progress bars, nor with an own `find`."""
    return not log_format.redraws and type(log_format).find is LogFormat.find


@lru_cache(maxsize=1024)
def label_of_prefix(prefix: bytes) -> bytes | None:
    """Return what `writer_label` does, for the text of a line before its step.

    The result is cached: many lines begin with the same text.
    """
    return writer_label(plain(prefix))


def _only_step(log_format: LogFormat, line: bytes) -> Values | None:
    """Return the values of the only step of a line; None if it has none or several."""
    steps = [values for _, values in log_format.find(plain(line))]
    return steps[0] if len(steps) == 1 else None


def _probe(
    log_format: LogFormat, line: bytes, values: Values
) -> tuple[dict[int, bytes], dict[str, int]] | None:
    """Change each run of digits once, to see which value it belongs to.

    Returns the pattern of each run by its position, and where each value ends; None if two values depend on
    the same digits. Digits without which the line is no such step are part of the form.
    """
    patterns: dict[int, bytes] = {}
    ends: dict[str, int] = {}
    runs = [*_DIGITS.finditer(line)]
    for run in runs:
        other = line[: run.start()] + run[0].translate(_OTHER_DIGITS) + line[run.end() :]
        changed = _only_step(log_format, other)
        patterns[run.start()] = run[0]
        if changed is None or changed.keys() != values.keys():
            continue
        differing = {name for name, value in values.items() if changed[name] != value}
        if len(differing) > 1 or len(run[0]) > _MOST_DIGITS or len(runs) > _MOST_RUNS:
            return None
        if _CONSTANT.isdisjoint(differing):
            patterns[run.start()] = _digits(line, run)
        ends |= dict.fromkeys(differing, run.end())
    return patterns, ends


def _start(log_format: LogFormat, line: bytes) -> int:
    """Return where the step begins, of which the text reaches to the line's end."""
    text, _ = next(log_format.find(plain(line)))
    starts = range(len(line) - len(text), -1, -1)
    return next(start for start in starts if plain(line[start:]) == text)


def _digits(line: bytes, run: re.Match[bytes]) -> bytes:
    """Return the pattern of a run of digits: beside a comma, and in an exponent, its length matters."""
    before, behind = line[max(0, run.start() - 3) : run.start()], line[run.end() : run.end() + 1]
    if before.endswith(b",") or behind == b",":
        return rb"\d{%d}" % len(run[0])
    most = 2 if re.search(rb"\d\.?[eE][-+]?$", before) else _MOST_DIGITS
    return rb"\d{1,%d}+" % max(most, len(run[0]))
