"""Scaling efficiency of runs: computed when runs are published, and stored with its base.

It is the run's tokens/s per GPU divided by the mean of its base, the runs on the fewest GPUs in the same
sweep run or DAG run. If all runs there have the same number of GPUs, the base is from an earlier sweep run or
DAG run with fewer GPUs (`_nearest_earlier`). A base differs only in the number of GPUs and is of the same
DAG, so whoever may read a run may read its base.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.engine import Connection

from steptime.durations import WEEK_S
from steptime.recipes.models import Mode
from steptime.store.columns import COMPUTED, Row, series_columns
from steptime.store.database import dicts, lock_series, read_connection, write_transaction
from steptime.store.schema import is_valid, runs

CONFIDENCE = 0.95
"""Level of the confidence interval."""
FEWEST_REPEATS = 3
"""Fewest jobs at each GPU count for an interval: with two, only 7 of 10 intervals have the true value."""
EARLIER_S = WEEK_S
"""How long before the nearest earlier run on fewer GPUs the base may have been submitted, in seconds."""

_FAMILY = (*series_columns("model", "variant", "mode"), "dag_id")
_REPEATED = (*series_columns("spread"), "global_batch_size", "micro_batch_size")
"""Columns that repeats of a run share besides `_FAMILY`; they determine the number of GPUs."""
_READ = (
    *("id", "job_name", "submitted_at", "gpus", "tokens_per_s_per_gpu", "dag_run_id"),
    *(*_FAMILY, *_REPEATED, *COMPUTED),
)
_RESAMPLES = 2000


def lock(connection: Connection, run: Row) -> None:
    """Lock the runs whose scaling efficiency may depend on `run` (a row) until the transaction ends."""
    lock_series(connection, _family(run))


def compute(connection: Connection, run: Row) -> None:
    """Compute and store the scaling efficiency of all runs that may be compared with `run` (a row).

    Does nothing if the mode of `run` is not `performance`.
    """
    if run["mode"] == Mode.PERFORMANCE:
        compute_family(connection, _family(run))


def compute_all(url: str) -> None:
    """Compute and store the scaling efficiency of every performance run in the store at `url`."""
    families = select(*(runs.c[name] for name in _FAMILY)).where(runs.c.mode == Mode.PERFORMANCE).distinct()
    with read_connection(url) as connection:
        keys = [dict(row) for row in connection.execute(families).mappings()]
    for family in keys:
        with write_transaction(url) as connection:
            lock_series(connection, family)
            compute_family(connection, family)


def compute_family(connection: Connection, family: Row) -> None:
    """Compute and store the scaling efficiency of every run with these column values."""
    query = (
        select(*(runs.c[name] for name in _READ), is_valid.label("is_valid"))
        .where(*(runs.c[name] == value for name, value in family.items()))
        .order_by(runs.c.submitted_at, runs.c.id)
    )
    rows = list(dicts(connection.execute(query)))
    unknown: Row = dict.fromkeys(COMPUTED)
    computed = efficiencies([row for row in rows if row["is_valid"] and row["tokens_per_s_per_gpu"]])
    changed = [
        {"of": row["id"], **values}
        for row in rows
        for values in (computed.get(row["id"], unknown),)
        if any(row[name] != value for name, value in values.items())
    ]
    if changed:
        update = runs.update().where(runs.c.id == bindparam("of"))
        connection.execute(update.values({name: bindparam(name) for name in unknown}), changed)


def efficiencies(rows: Sequence[Row]) -> dict[int, Row]:
    """Return the scaling efficiencies of runs (the columns `COMPUTED`) by run id.

    Each is relative to a base, the comparable runs on the fewest GPUs; runs without one are left out. `rows`
    are the valid runs that may be compared with each other, oldest first.
    """
    groups: dict[Any, list[Row]] = defaultdict(list)
    repeated: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[_together(row)].append(row)
        repeated[_together(row), _repeated(row)].append(row)
    bases = {together: _smallest(group) for together, group in groups.items()}
    by_run: dict[int, Row] = {}
    intervals: dict[Any, tuple[float | None, float | None]] = {}
    for index, row in enumerate(rows):
        together, kind = _together(row), _repeated(row)
        base = bases[together]
        if len(base) == len(groups[together]):  # its scale is alone there
            earlier = _nearest_earlier(rows, index)
            if earlier is None:
                continue
            base = bases[_together(earlier)]
        repeats = repeated[together, kind]
        key = (together, kind, base[0]["id"])
        if key not in intervals:
            intervals[key] = (None, None) if repeats[0] in base else interval(_rates(repeats), _rates(base))
        low, high = intervals[key]
        by_run[row["id"]] = {
            "scaling_efficiency_percent": 100 * row["tokens_per_s_per_gpu"] / statistics.fmean(_rates(base)),
            "scaling_efficiency_low_percent": low,
            "scaling_efficiency_high_percent": high,
            "scaling_base_gpus": base[0]["gpus"],
            "scaling_base_jobs": ", ".join(run["job_name"] for run in base),
        }
    return by_run


def interval(rates: Sequence[float], base: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the confidence interval of the scaling efficiency at a GPU count, in percent.

    The method is bootstrap over jobs. `rates` and `base` have the throughput per GPU of each job at this GPU
    count and at the smallest one. Both ends are None if either has fewer than `FEWEST_REPEATS` jobs. The
    random generator has a fixed seed, so the same numbers give the same interval. With few jobs plain
    percentiles would be too narrow: they are widened by Student's t (Hesterberg, 2015, "expanded percentile
    interval").
    """
    fewest = min(len(rates), len(base))
    if fewest < FEWEST_REPEATS:
        return None, None
    import numpy as np
    from scipy import special

    rng = np.random.default_rng(12)
    means = [rng.choice(sample, (_RESAMPLES, len(sample))).mean(axis=1) for sample in (rates, base)]
    t = special.stdtrit(fewest - 1, (1 + CONFIDENCE) / 2) * math.sqrt(fewest / (fewest - 1))
    tail = float(special.ndtr(-t))
    low, high = np.quantile(100 * means[0] / means[1], (tail, 1 - tail))
    return float(low), float(high)


def _nearest_earlier(rows: Sequence[Row], index: int) -> Row | None:
    """Return an earlier run on fewer GPUs than the run `rows[index]`; None if there is none.

    Of the week that ends with the nearest such run, it is the newest run on the smallest number of GPUs.
    """
    nearest: Row | None = None
    until = -math.inf
    for row in (rows[before] for before in reversed(range(index))):
        if row["submitted_at"] < until:
            break
        if nearest is None and row["gpus"] < rows[index]["gpus"]:
            nearest, until = row, row["submitted_at"] - EARLIER_S
        elif nearest is not None and row["gpus"] < nearest["gpus"]:
            nearest = row
    return nearest


def _smallest(rows: Iterable[Row]) -> list[Row]:
    """Return the runs on the fewest GPUs."""
    rows = list(rows)
    fewest = min(row["gpus"] for row in rows)
    return [row for row in rows if row["gpus"] == fewest]


def _together(row: Row) -> Any:
    """Return a key that is the same for runs of one DAG run; a run outside of Airflow has its own key.

    All rows are of one family, and so of one DAG: the DAG run's id is unique among them.
    """
    return row["dag_run_id"] or ("", row["job_name"])


def _repeated(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _REPEATED)


def _family(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in _FAMILY}


def _rates(rows: Iterable[Row]) -> list[float]:
    return [row["tokens_per_s_per_gpu"] for row in rows]
