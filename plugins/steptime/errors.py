"""What can go wrong, by whose turn it is: the user (exit code 1) or the system (exit code 2)."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Self

_MOST_SENTENCES = 50
"""Of one file: what is beyond them mostly follows from them."""


class UserError(ValueError):
    """Something the user wrote cannot be: one sentence that names the value and what to do. Exit code 1."""

    exit_code = 1


class BrokenFiles(UserError):
    """What is wrong with one file or with several: a sentence a problem, each in a line of its own."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("\n".join(self.sentences))

    @classmethod
    def of_file(cls, sentences: Sequence[str]) -> Self:
        """Return the first problems of one file, and how many there are beyond them."""
        if len(sentences) <= _MOST_SENTENCES:
            return cls(sentences)
        more = f"… and {len(sentences) - _MOST_SENTENCES} problems more in this file."
        return cls([*sentences[:_MOST_SENTENCES], more])


class SystemFailure(RuntimeError):
    """A machine, service or job failed although what was asked is fine. Exit code 2."""

    exit_code = 2


class OutOfReach(SystemFailure):
    """A cluster cannot be asked now: no way to it, or no answer of its scheduler. What runs there runs on."""


class StoreUnavailable(SystemFailure):
    """The metrics store does not answer now, or takes no writes."""


class LoginRefused(OutOfReach):
    """A host refuses our login, we refuse its key, or no command can run there.

    It may pass, as when the directory service or the home directories are away. On a cluster that was
    never reached before, it is the user's error.
    """


class SubmitLimit(SystemFailure):
    """A cluster accepts no more jobs of this user or account for now. Submit again later."""


class Overdue(SystemFailure):
    """A job has taken longer than somebody allowed: to be submitted, in the queue, or running."""


def shown(value: object, *, at_most: int | None = 80) -> str:
    """Prepare `value` for a sentence: in one line, without control characters, cut if it is long.

    >>> shown("8b" + chr(10) + "16b")
    '8b\\\\n16b'
    """
    text = str(value)
    if not text.isprintable():
        text = "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
        )
    return text if at_most is None or len(text) <= at_most else text[: at_most - 1] + "…"


def unknown_value(kind: str, value: object, valid: Iterable[object], *, of: str = "") -> UserError:
    """Return the error for a value outside its choices, with the value, the nearest match and all choices.

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
        f"unknown {kind} '{shown(value)}'{owner}{hint} Valid are: {', '.join(choices) or 'none'}."
    )


def _nearest(value: str, choices: Sequence[str]) -> str | None:
    """The choice most like `value`: numbers by their distance, words by their letters."""
    if value.isdecimal() and choices and all(choice.isdecimal() for choice in choices):
        return min(choices, key=lambda choice: abs(int(choice) - int(value)))
    matches = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
    return matches[0] if matches else None
