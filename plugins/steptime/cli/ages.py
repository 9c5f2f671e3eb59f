"""Ages as they are typed: 30m, 12h, 7d, 2w."""

import re

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def age_s(text: str) -> int | None:
    """The age in seconds; None for what is none."""
    match = re.fullmatch(r"(\d{1,6})([mhdw])", text, re.ASCII)
    return int(match[1]) * _UNITS_S[match[2]] if match else None
