"""Parse and format GPU counts, windows and time limits in flags, DAG params and config files."""

import math
import re
from collections.abc import Sequence

from steptime.errors import UserError, one_line, unknown_value
from steptime.recipes.models import Window
from steptime.wording import counted

# Forms have them, too; digits are written out, as \d has more of them in Python than in JSON schema.
WINDOW_PATTERN = r"^\s*([0-9]{1,9})\s*:\s*([0-9]{1,9})\s*$"
TIME_LIMIT_PATTERN = r"^\s*([0-9]{1,3}):([0-5][0-9]):([0-5][0-9])\s*$"
_PART = r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?"
NUMBERS_PATTERN = f"^{_PART}(?:,{_PART})*$"
"""Pattern of GPU counts and ranks: `8,16`, `8-128`, `8-32,128`."""


def parse_window(text: str) -> Window:
    """Parse `"10:19"` as global steps, both included. Raises UserError for another form or order."""
    match = re.fullmatch(WINDOW_PATTERN, text, re.ASCII)
    if not match:
        raise UserError(
            f"window '{one_line(text)}' is not of the form FIRST:LAST, two global steps such as 35:44."
        )
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise UserError(f"window '{one_line(text)}' ends before it begins: write the smaller step first.")
    return Window(first=first, last=last)


def parse_time_limit(text: str) -> int:
    """Parse `"00:30:00"` as seconds. Raises UserError for another form, and for zero."""
    match = re.fullmatch(TIME_LIMIT_PATTERN, text, re.ASCII)
    seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]) if match else 0
    if not seconds:
        raise UserError(
            f"time limit '{one_line(text)}' is not of the form HH:MM:SS with a time above zero, such as "
            f"00:30:00."
        )
    return seconds


def format_time_limit(seconds: int) -> str:
    """Format seconds as `HH:MM:SS`, the form that sbatch takes; the inverse of `parse_time_limit`."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest:02}"


def format_hours(hours: float) -> str:
    """Format GPU-hours with two decimals, or with two significant digits if the number is small."""
    decimals = 2 if hours == 0 else max(2, min(6, 1 - math.floor(math.log10(abs(hours)))))
    return f"{hours:,.{decimals}f}"


def format_bytes(number: int) -> str:
    """Format a size with three significant digits in units of 1,024: `105 GiB`, `5.17 TiB`."""
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 999.5:
            break
        size, unit = size / 1024, larger
    return f"{size:,.3g} {unit}" if size < 999.5 else f"{size:,.0f} {unit}"


def format_at_most(jobs: int, gpu_hours: float) -> str:
    """Format jobs and their GPU-hours (on a CPU, process-hours): `4 jobs, at most 1.17 GPU-hours`."""
    return f"{counted(jobs, 'job')}, at most {format_hours(gpu_hours)} GPU-hours"


def select_gpus(text: str, documented: Sequence[int], *, of: str = "") -> tuple[int, ...]:
    """Return the GPU counts that `text` selects among the valid ones (`documented`), ascending.

    `"8,16"` means those two, `"8-128"` all valid ones from 8 to 128; parts may be mixed: `"8-32,128"`. `of`
    says in error messages what the counts belong to. Raises UserError if the text has another form, or names
    a count that is not valid.
    """
    chosen: set[int] = set()
    valid = f"Valid{of and f' for {of}'} are: {', '.join(map(str, documented))}."
    for part in text.split(","):
        first, last, is_range = _range("GPU counts", part, text, f"8,16 or 8-128. {valid}")
        within = [count for count in documented if first <= count <= last]
        if is_range and not within:
            raise UserError(f"no valid GPU count is in the range '{part.strip()}'. {valid}")
        if not within:
            raise unknown_value("GPU count", first, documented, of=of)
        chosen.update(within)
    return tuple(sorted(chosen))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse `"0-3,8"` as ranks, ascending. Raises UserError, also for a rank named twice."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, last, _ = _range("`profile_ranks`", part, text, "0-7 or 0,8,16.")
        if twice := ranks.intersection(range(first, last + 1)):
            raise UserError(
                f"`profile_ranks` '{one_line(text)}' name rank {min(twice)} twice: name each once."
            )
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def _range(what: str, part: str, text: str, form: str) -> tuple[int, int, bool]:
    """Parse a number or range, such as `8` or `8-16`: return first, last, and whether it is a range.

    `part` is parsed; `what`, `text` and `form` appear only in the UserError that an invalid part raises.
    """
    match = re.fullmatch(_PART, part, re.ASCII)
    if not match:
        raise UserError(f"{what} '{one_line(text)}' are not of the form {form}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise UserError(f"{what} '{part.strip()}' end before they begin: write {last}-{first}.")
    return first, last, match[2] is not None
