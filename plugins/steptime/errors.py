"""Errors by who has to act: the user (exit code 1) or the system's operator (exit code 2)."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Self

_MOST_SENTENCES = 50
"""Maximum number of mistakes shown for one file: further ones are mostly consequences."""


class UserError(ValueError):
    """The request is impossible: one sentence that names the value and the remedy. Exit code 1."""

    exit_code = 1


class BrokenFiles(UserError):
    """The mistakes in one or several files: a sentence for each, on a line of its own."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("\n".join(self.sentences))

    @classmethod
    def from_sentences(cls, sentences: Sequence[str]) -> Self:
        """Return the error for one file's mistakes: it lists the first 50 and counts the others."""
        if len(sentences) <= _MOST_SENTENCES:
            return cls(sentences)
        more = f"… and {len(sentences) - _MOST_SENTENCES} problems more in this file."
        return cls([*sentences[:_MOST_SENTENCES], more])


class SystemFailure(RuntimeError):
    """A machine, service or job failed, although the request was valid. Exit code 2."""

    exit_code = 2


class OutOfReach(SystemFailure):
    """A cluster or its scheduler does not answer. Its jobs may still be running."""


class StoreUnavailable(SystemFailure):
    """The metrics store does not answer, or accepts no writes at the moment."""


class NotRegular(SystemFailure):
    """A path on a cluster leads to a FIFO, device or folder, and reading that might never end."""


class LoginRefused(OutOfReach):
    """A host refuses the login, shows an untrusted key, or can run no command.

    The cause may be temporary, such as a directory service or home directories that are down. If the cluster
    was never reached before, the user's configuration is to blame.
    """


class SubmitLimit(SystemFailure):
    """A cluster accepts no more jobs of this user or account for now. Submit again later."""


class Overdue(SystemFailure):
    """A job exceeded the time that it may take to be accepted, to start, or to end."""


_VALUE_AT_MOST = 80
_PATH_AT_MOST = 800


def one_line(value: object, *, at_most: int | None = _VALUE_AT_MOST) -> str:
    """Format `value` for a sentence: in one line, without control characters, shortened if it is long.

    `at_most` is in characters, None for no limit. An absolute path is left whole up to 800 characters: its
    end says which file it is.

    >>> one_line("8b" + chr(10) + "16b")
    '8b\\\\n16b'
    """
    text = str(value)
    if at_most == _VALUE_AT_MOST and text.startswith("/"):
        at_most = _PATH_AT_MOST
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
        )
    return text if at_most is None or len(text) <= at_most else text[: at_most - 1] + "…"


def unknown_value(kind: str, value: object, valid: Iterable[object], *, of: str = "") -> UserError:
    """Return the error for an invalid choice, with the value, the nearest match and all choices.

    `of` names what the choices belong to.

    >>> str(unknown_value("dtype", "fp88", ["bf16", "fp8"]))
    "unknown dtype 'fp88': did you mean 'fp8'? Valid are: bf16, fp8."
    >>> str(unknown_value("scaling", "none", ["weak", "strong"], of="tiny on cpu"))
    "unknown scaling 'none' of tiny on cpu. Valid are: weak, strong."
    """
    choices = [str(choice) for choice in valid]
    nearest = _nearest(str(value), choices)
    hint = f": did you mean '{nearest}'?" if nearest else "."
    owner = f" of {of}" if of else ""
    return UserError(
        f"unknown {kind} '{one_line(value)}'{owner}{hint} Valid are: {', '.join(choices) or 'none'}."
    )


def _nearest(value: str, choices: Sequence[str]) -> str | None:
    """Return the choice nearest to `value`, or None: numbers by difference, words by similar spelling."""
    if value.isdecimal() and choices and all(choice.isdecimal() for choice in choices):
        return min(choices, key=lambda choice: abs(int(choice) - int(value)))
    words = {choice.lstrip("-"): choice for choice in choices}  # else the dashes of options are alike
    matches = difflib.get_close_matches(value.lstrip("-"), words, n=1, cutoff=0.5)
    return words[matches[0]] if matches else None
