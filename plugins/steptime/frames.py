"""Results as pandas DataFrames: `steptime.read_runs`, `steptime.read_steps` and `steptime.read_judgements`.

Columns have the names and units of `steptime results columns`. Text is `string`, whole numbers are `Int64`,
other numbers `float64`, and yes or no is `boolean`; times are `datetime64[ns, UTC]`. Missing values are NA,
NaN or NaT.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
from pandas.api.types import pandas_dtype

from steptime.errors import UserError
from steptime.judging.run_findings import RUN_VERDICT_COLUMNS, add_verdicts
from steptime.store.columns import COLUMNS, Column, Kind
from steptime.store.judgement_queries import by_job
from steptime.store.run_queries import Store

_DTYPES: Mapping[Kind, str] = {
    "text": "string",
    "integer": "Int64",
    "number": "float64",
    "boolean": "boolean",
    "time": "datetime64[ns, UTC]",
}
STEP_COLUMNS = (
    Column("job_name", "text", "The run's job."),
    Column("global_step", "integer", "Number of the step, as the log counts it."),
    Column("step_time_s", "number", "Step time as logged, in seconds."),
    Column(
        "wall_time_s",
        "number",
        "Seconds from the end of the step before to its end, as steptime's trainer logs it.",
    ),
    Column("loss", "number", "Training loss."),
    Column("learning_rate", "number", "Learning rate."),
    Column("global_batch_size", "integer", "Global batch size as logged."),
    Column("consumed_samples", "integer", "Samples that were trained up to this step."),
    Column("tflops_per_gpu", "number", "TFLOPS per GPU as logged."),
    Column("tokens_per_s_per_gpu", "number", "Tokens per second and GPU as logged."),
    Column("peak_memory_bytes", "integer", "Peak memory as logged."),
)
"""Columns of `read_steps`."""
JUDGEMENT_COLUMNS = (
    Column("job_name", "text", "The judged run."),
    Column(
        "metric", "text", "The judged number: a column of the runs, or step_time_s for that of the steps."
    ),
    Column("series_state", "text", "State of the run's series as of this run."),
    Column("direction", "text", "slower or faster; missing if neither."),
    Column(
        "judged_on",
        "text",
        "What of each run is judged: the median of its steady steps, or a column of the runs.",
    ),
    Column("judged_s", "number", "Mean of the judged runs, in seconds."),
    Column(
        "ratio", "number", "Mean of the judged runs relative to that of the baseline: 1.03 is 3 % slower."
    ),
    Column("limit_ratio", "number", "The ratio from which on a change is suspected."),
    Column("baseline_mean_s", "number", "Mean of the baseline, in seconds."),
    Column("baseline_median_s", "number", "Median of the baseline, in seconds."),
    Column("baseline_deviation", "number", "Standard deviation of the baseline relative to its mean."),
    Column(
        "baseline_runs",
        "integer",
        "Runs of the baseline; if they are too few, the numbers after it are missing.",
    ),
    Column(
        "minimum_detectable_change", "number", "Slowdown that one run shows in 4 of 5 cases: 0.03 is 3 %."
    ),
    Column("p_value", "number", "One-sided p-value of the change; missing if too few runs precede the run."),
)
"""Columns of `read_judgements`."""


def read_runs(
    url: str | None = None,
    *,
    include_rejected: bool = False,
    since: datetime | str | None = None,
    **equal: Any,
) -> pd.DataFrame:
    """Return a row for each run, newest first, with its results and verdict.

    Raises UserError for an unknown column and if the store does not exist, SystemFailure if the database
    fails.

    Args:
        url: address of the store, as `postgresql://user:password@host/steptime` or
            `sqlite:////path/steptime.db`; by default that of the settings (`STEPTIME_STORE_URL`).
        include_rejected: include rejected runs; their column `reason` says why.
        since: only runs submitted at this time or later; a time without a zone is in UTC.
        equal: only runs with these values, by column: `size="8b", gpus=64`.
    """
    if unknown := sorted(equal.keys() - {column.name for column in COLUMNS}):
        raise UserError(f"runs have no column '{unknown[0]}': 'steptime results columns' lists them.")
    store = _store(url)
    rows = store.results(include_rejected=include_rejected, since=_seconds(since), **equal)
    return _frame(add_verdicts(store, rows), (*COLUMNS, *RUN_VERDICT_COLUMNS))


def read_steps(job_names: str | Iterable[str], url: str | None = None) -> pd.DataFrame:
    """Return a row for each training step of these runs, in the order of the runs.

    Unknown runs have no rows.

    Columns: `STEP_COLUMNS`. Raises UserError if the store does not exist, SystemFailure if the database
    fails.

    Args:
        job_names: names of jobs, or the column `job_name` of `read_runs`.
        url: address of the store, as for `read_runs`.
    """
    names = [job_names] if isinstance(job_names, str) else list(job_names)
    steps = _store(url).steps_of_runs(names, [column.name for column in STEP_COLUMNS[1:]])
    return _frame([row for name in dict.fromkeys(names) for row in steps.get(name, ())], STEP_COLUMNS)


def read_judgements(url: str | None = None, *, since: datetime | str | None = None) -> pd.DataFrame:
    """Return a row for each judged valid run: how its series stood against its history as of that run.

    Columns: `JUDGEMENT_COLUMNS`. What people are told about a run is its column `verdict` in `read_runs`.
    Raises UserError if the store does not exist, SystemFailure if the database fails.

    Args:
        url: address of the store, as for `read_runs`.
        since: only runs submitted at this time or later; a time without a zone is in UTC.
    """
    judged = by_job(_store(url), since=_seconds(since))
    return _frame([row for row in judged.values() if row["series_state"] is not None], JUDGEMENT_COLUMNS)


def _store(url: str | None) -> Store:
    store = Store(url)
    if not store.exists():
        raise UserError(
            f"there is no metrics store at {store.shown_address}: check STEPTIME_STORE_URL or url."
        )
    return store


def _seconds(moment: datetime | str | None) -> float | None:
    """Return a moment as Unix time in seconds; one without a zone is in UTC."""
    if moment is None:
        return None
    time = pd.Timestamp(moment)
    return float((time.tz_localize("UTC") if time.tzinfo is None else time).timestamp())


def _frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> pd.DataFrame:
    """Return rows as a DataFrame of these columns, with the dtype of each."""
    frame = pd.DataFrame(
        {column.name: [row[column.name] for row in rows] for column in columns}, dtype=object
    )
    for column in columns:
        values = frame[column.name]
        if column.kind == "time":
            values = pd.to_datetime(pd.to_numeric(values), unit="s", utc=True)
        elif column.kind == "number":
            values = pd.to_numeric(values)
        frame[column.name] = values.astype(pandas_dtype(_DTYPES[column.kind]))
    return frame
