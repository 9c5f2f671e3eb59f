"""What many runs took together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from steptime.durations import duration


@dataclass(frozen=True)
class Totals:
    """Of a selection of runs: how many, and what they cost."""

    runs: int
    rejected: int
    """Of these, the ones that a check rejected."""
    gpu_hours: float
    mean_queue_wait_s: float | None
    """None if no run has started."""
    longest_queue_wait_s: float | None

    @property
    def sentence(self) -> str:
        """As in `9 runs, 1 rejected · 0.5 GPU-hours · in the queue for 2 min on average, 9 min at most`."""
        runs = f"{self.runs:,} run{'' if self.runs == 1 else 's'}"
        parts = [runs + (f", {self.rejected:,} rejected" if self.rejected else ""), _hours(self.gpu_hours)]
        if self.mean_queue_wait_s is not None and self.longest_queue_wait_s is not None:
            waits = duration(self.mean_queue_wait_s), duration(self.longest_queue_wait_s)
            parts.append(f"in the queue for {waits[0]} on average, {waits[1]} at most")
        return " · ".join(parts)


def totals_of(rows: Sequence[Mapping[str, Any]]) -> Totals:
    """Sum up these rows of the store."""
    waits = [row["queue_wait_s"] for row in rows if row["queue_wait_s"] is not None]
    rejected = sum(row["state"] == "rejected" for row in rows)
    hours = sum(row["gpu_hours"] or 0.0 for row in rows)
    return Totals(len(rows), rejected, hours, fmean(waits) if waits else None, max(waits, default=None))


def _hours(hours: float) -> str:
    """With three digits, and all of those before the point."""
    return f"{hours:,.0f} GPU-hours" if hours >= 100 else f"{hours:.3g} GPU-hours"
