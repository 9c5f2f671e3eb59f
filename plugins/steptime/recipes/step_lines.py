"""How a program prints a step: a line with words in braces, such as `iter {step}: loss {loss}, {ms} ms`."""

from string import Formatter
from typing import NamedTuple

WORDS = (
    *("step", "step_from_1", "s", "ms", "loss", "grad_norm", "learning_rate"),
    *("tokens_per_s_per_gpu", "tflops_per_gpu", "memory_gib", "..."),
)
"""The words in braces: the step, counted from 0 or from 1; its time in seconds or milliseconds; other numbers
of the step; and `...` for any text."""
_NUMBERS, _TIMES = ("step", "step_from_1"), ("s", "ms")
_LEAST_FIXED = 3


class StepLine(NamedTuple):
    """A form of step lines in pieces: fixed texts and words of `WORDS`, in the order of the line."""

    pieces: tuple[tuple[str, str | None], ...]
    """A fixed text and the word that follows it; None after the last text. Blanks are single ones."""
    fixed: str
    """The longest fixed text without a blank, by which lines are found."""
    first: int
    """The number that is printed for the first step."""


def parse_step_line(form: str) -> StepLine:
    """Take a form such as `iter {step}: loss {loss}, {ms} ms` apart; `{{` stands for a brace.

    Raises ValueError, in words that complete `step_line …`, if lines of this form cannot be read.
    """
    if "\n" in form.strip():
        raise ValueError("has to be one line")
    pieces: list[tuple[str, str | None]] = []
    before = ""
    try:
        for text, word, *_ in Formatter().parse(" ".join(form.split())):
            before += text  # a brace that is printed ends a text without a word
            if word is not None:
                pieces.append((before, word))
                before = ""
    except ValueError:
        raise ValueError("has a brace without its other one: write {{ for one that is printed") from None
    words = [word for _, word in pieces]
    for word in words:
        if word not in WORDS:
            valid = ", ".join(f"{{{known}}}" for known in WORDS)
            raise ValueError(f"has {{{word}}}, which is none of its words: {valid}")
        if word != "..." and words.count(word) > 1:
            raise ValueError(f"has {{{word}}} twice: write {{...}} for the other one")
    for text, word in pieces[1:]:
        if not text:
            raise ValueError(f"has nothing between {{{word}}} and the word before it")
    if sum(word in _NUMBERS for word in words) != 1:
        raise ValueError("needs one of {step} and {step_from_1}")
    if sum(word in _TIMES for word in words) != 1:
        raise ValueError("needs one of {s} and {ms}, the time of the step")
    pieces.append((before, None))
    fixed = max((part for text, _ in pieces for part in text.split()), key=len, default="")
    if len(fixed) < _LEAST_FIXED:
        raise ValueError(f"needs a fixed text of {_LEAST_FIXED} letters, by which its lines are found")
    return StepLine(tuple(pieces), fixed, 1 if "step_from_1" in words else 0)
