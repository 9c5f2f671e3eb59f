"""Times as people type them: ages such as `7d`, and dates."""

import re
from datetime import datetime

from steptime.errors import UserError, one_line

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def age_s(text: str) -> int | None:
    """Parse an age such as `7d` as seconds; None if it is not an age."""
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII)
    return int(match[1]) * _UNITS_S[match[2]] if match else None


def since_when(text: str, now: float, option: str = "--since") -> float:
    """Parse the value of an option as Unix time: an age such as `7d` before `now`, or an ISO date.

    A date without a time zone is local. Raises UserError, which names the option, for any other text.
    """
    age = age_s(text)
    return _date(text, option) if age is None else now - age


def until_when(text: str, now: float, option: str = "--until") -> float:
    """Parse the value of an option as Unix time: a duration such as `7d` after `now`, or an ISO date."""
    age = age_s(text)
    return _date(text, option) if age is None else now + age


def _date(text: str, option: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise UserError(
            f"{option} '{one_line(text)}' is not a time: write 30m, 12h, 7d, 2w, or a date as 2026-11-21."
        ) from None
