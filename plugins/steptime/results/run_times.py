"""How long stored runs took, as a whole and a step, for what is expected of the next ones."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from steptime.results.database import read_rows

_LATEST = """
SELECT ended_at - started_at, step_time_mean_s,
       COALESCE((SELECT steps FROM step_files WHERE run_id = runs.id),
                (SELECT COUNT(*) FROM steps WHERE run_id = runs.id))
FROM runs
WHERE state = 'valid' AND started_at IS NOT NULL AND ended_at IS NOT NULL AND step_time_mean_s IS NOT NULL
  AND {of_series}
ORDER BY submitted_at DESC, id DESC
LIMIT :limit
"""


class RunTimes(NamedTuple):
    """Of one run."""

    job_s: float
    """From started to ended."""
    step_s: float
    """Mean step time."""
    steps: int
    """In its log."""


def latest(url: str, key: Mapping[str, Any], limit: int) -> list[RunTimes]:
    """Return the times of a store's latest valid runs with these column values, as far as they are known."""
    query = _LATEST.format(of_series=" AND ".join(f"{column} = :{column}" for column in key))
    return [RunTimes(*row) for row in read_rows(url, query, {**key, "limit": limit})]
