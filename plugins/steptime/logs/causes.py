"""Why runs end: what the libraries below a training print when it fails, as `causes.yaml` lists it."""

import re
from pathlib import Path

from steptime.frozen import Frozen
from steptime.logs.models import Problem
from steptime.recipes.config_files import load_yaml_model

RANK_FAILED = "rank_failed"
"""The kind that is only about how a rank ended: any other is about why."""
_LONGEST_QUOTE = 300
_REACH_BEFORE, _REACH_BEHIND = 500, 1000
"""Bytes around a word in which its form is looked for: a line of garbage may be a mebibyte long."""


class Cause(Frozen):
    """A cause of failure: the words that mark its lines, and the forms these take."""

    kind: str
    words: tuple[str, ...]
    forms: dict[str, str]
    """Regular expressions, each with its sentence, which takes the expression's named groups."""
    certain: bool = True

    def find(self, line: bytes, at: int) -> Problem | None:
        """Return the problem of the line that has a word at `at`, or None if it has that only by chance."""
        text = line[max(0, at - _REACH_BEFORE) : at + _REACH_BEHIND]
        for form, sentence in self.forms.items():
            if match := re.search(form.encode(), text):
                values = {name: _quote(value) for name, value in match.groupdict().items()}
                return Problem(kind=self.kind, message=sentence.format(**values), fatal=self.certain)
        return None


class _Causes(Frozen):
    causes: tuple[Cause, ...]


_CAUSES = load_yaml_model(Path(__file__).with_name("causes.yaml"), _Causes).causes
_CAUSE_OF = {word.encode(): cause for cause in _CAUSES for word in cause.words}
_TRACEBACK = b"Traceback (most recent call last)"
FAILURE_WORDS = (*_CAUSE_OF, _TRACEBACK, b"Error: ", b"Exception: ", b"AssertionError")

_NAME = rb"(?P<name>[A-Za-z_][\w.]{0,100}(?:Error|Exception)|Exception)"
_EXCEPTION = re.compile(rb"(?:^|[\s\]:>])" + _NAME + rb"(?:: ?(?P<text>.{0,300})|\s*$)")


class Failures:
    """Reads the signs of a failure in the lines of a log.

    They are fatal if training cannot have gone on properly; else it failed only if steps are missing.
    """

    def __init__(self) -> None:
        self.in_traceback = False
        """Whether the exception at the end of a Python traceback is still to come."""

    def read(self, line: bytes) -> list[Problem]:
        """Return the causes in a line, or the exception in it that ends a traceback; a known cause wins."""
        found = sorted((line.find(word), word) for word in _CAUSE_OF if word in line)
        problems = [problem for at, word in found if (problem := _CAUSE_OF[word].find(line, at))]
        self.in_traceback |= _TRACEBACK in line
        exception = _EXCEPTION.search(line) if self.in_traceback else None
        if exception is not None:
            self.in_traceback = False
            # Torchrun's own follows from a rank that failed, which has a line of its own.
            if not problems and not exception["name"].endswith(b"ChildFailedError"):
                text = b": " + exception["text"] if exception["text"] else b""
                problems.append(_traceback(_quote(exception["name"] + text)))
        return problems

    def finish(self) -> list[Problem]:
        """Return a traceback whose exception never came, or whose name is no exception's."""
        return [_traceback("its last line was not recognised")] if self.in_traceback else []


def _traceback(what: str) -> Problem:
    return Problem(kind="traceback", message=f"Python traceback: {what}", fatal=False)


def _quote(text: bytes) -> str:
    """Text of a log for people: valid, printable, and not endless."""
    decoded = text[:_LONGEST_QUOTE].decode(errors="replace").strip()
    return "".join(character if character.isprintable() else " " for character in decoded)
