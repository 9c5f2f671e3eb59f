"""Ages as they are typed: 30m, 12h, 7d, 2w."""

import re
from datetime import datetime

from steptime.errors import UserError, shown

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def age_s(text: str) -> int | None:
    """Return the age in seconds, or None if there is none."""
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII)
    return int(match[1]) * _UNITS_S[match[2]] if match else None


def since_when(text: str, now: float) -> float:
    """Parse `--since`, `7d` (ago) or an ISO date, local if it names no zone, as Unix time."""
    if (age := age_s(text)) is not None:
        return now - age
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        raise UserError(
            f"--since '{shown(text)}' is no time: write 30m, 12h, 7d, 2w, or a date as 2026-11-21."
        ) from None
