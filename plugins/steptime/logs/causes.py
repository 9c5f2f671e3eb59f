"""Why runs end: what the libraries below a training print when it fails, as `causes.yaml` lists it."""

import re
from pathlib import Path
from typing import NamedTuple

from steptime.frozen import Frozen
from steptime.recipes.config_files import load_yaml_model

RANK_FAILED = "rank_failed"
"""The kind that is only about how a rank ended: any other is about why."""
_LONGEST_QUOTE = 300
_REACH_BEFORE, _REACH_BEHIND = 500, 1000
"""Bytes around a word in which its form is looked for: a line of garbage may be a mebibyte long."""


class Symptom(NamedTuple):
    """A line about a failure."""

    kind: str
    message: str
    certain: bool
    """Whether training cannot have gone on in good order; else it is a failure only if steps are missing."""


class Cause(Frozen):
    """A cause of failure: the words that mark its lines, and the forms these take."""

    kind: str
    words: tuple[str, ...]
    forms: dict[str, str]
    """Regular expressions, each with its sentence, which takes the expression's named groups."""
    certain: bool = True

    def find(self, line: bytes, word: bytes) -> Symptom | None:
        """The symptom around `word`; None if the line has the word only by chance."""
        at = line.find(word)
        text = line[max(0, at - _REACH_BEFORE) : at + _REACH_BEHIND]
        for form, sentence in self.forms.items():
            if match := re.search(form.encode(), text):
                values = {name: quote(value) for name, value in match.groupdict().items()}
                return Symptom(self.kind, sentence.format(**values), self.certain)
        return None


class _Causes(Frozen):
    causes: tuple[Cause, ...]


CAUSES = load_yaml_model(Path(__file__).with_name("causes.yaml"), _Causes).causes

TRACEBACK_WORDS = (b"Traceback (most recent call last)", b"Error: ", b"Exception: ", b"AssertionError")
_NAME = rb"(?P<name>[A-Za-z_][\w.]{0,100}(?:Error|Exception)|Exception)"
_EXCEPTION = re.compile(rb"(?:^|[\s\]:>])" + _NAME + rb"(?:: ?(?P<text>.{0,300})|\s*$)")


class Tracebacks:
    """Reads the exception at the end of a Python traceback."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether the exception is still to come."""

    def read(self, line: bytes, *, explained: bool) -> Symptom | None:
        """The exception, when `line` is the one that ends an open traceback.

        `explained`: a known cause was found in the line, which is more than the exception's name.
        """
        if TRACEBACK_WORDS[0] in line:
            self.is_open = True
        match = _EXCEPTION.search(line) if self.is_open else None
        if match is None:
            return None
        self.is_open = False
        # Torchrun's own follows from a rank that failed, which has a symptom of its own.
        if explained or match["name"].endswith(b"ChildFailedError"):
            return None
        return _traceback(quote(match["name"] + (b": " + match["text"] if match["text"] else b"")))

    def finish(self) -> Symptom | None:
        """A traceback whose exception never came, or bears a name that is no exception's."""
        return _traceback("its last line was not recognised") if self.is_open else None


def _traceback(what: str) -> Symptom:
    return Symptom("traceback", f"Python traceback: {what}", certain=False)


def quote(text: bytes) -> str:
    """Text of a log for people: valid, printable, and not endless."""
    decoded = text[:_LONGEST_QUOTE].decode(errors="replace").strip()
    return "".join(character if character.isprintable() else " " for character in decoded)
