"""What can go wrong, told apart by whose turn it is: the user's (exit code 1) or the system's (exit code 2)."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the user wrote cannot be: one sentence that names the value and what to do. Exit code 1."""

    exit_code = 1


class SystemFailure(RuntimeError):
    """A machine, service or job failed although what was asked is fine. Exit code 2."""

    exit_code = 2


def unknown_value(kind: str, value: object, valid: Iterable[object]) -> UserError:
    """The error for a value outside its choices: names it, the nearest match, and every valid one.

    >>> str(unknown_value("dtype", "fp88", ["bf16", "fp8"]))
    "unknown dtype 'fp88': did you mean 'fp8'? Valid are: bf16, fp8."
    """
    choices = [str(choice) for choice in valid]
    nearest = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f" did you mean '{nearest[0]}'?" if nearest else ""
    return UserError(f"unknown {kind} '{value}':{hint} Valid are: {', '.join(choices)}.")
