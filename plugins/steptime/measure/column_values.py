"""Compute the values of a measured run in the columns that `store.columns` declares.

The plan determines the columns with `of_run`, and `Measurement` has the measured numbers. The others have a
function here. `store.efficiency` computes the columns that need several runs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.measure.goodput import job_times
from steptime.measure.gpu_samples import gpu_samples, what_stands_apart
from steptime.measure.metrics import against_publication, gpu_hours
from steptime.measure.stragglers import rank_times
from steptime.recipes.models import Mode
from steptime.store.columns import MEASURED, planned_values
from steptime.store.run_models import Result
from steptime.store.run_records import setup_columns


def column_values(result: Result) -> dict[str, Any]:
    """Return the values of a measured run by column name, as `store.writing` needs them.

    Those that are measured are None if nothing could be measured.
    """
    measured = result.measurement
    return {
        **planned_values(result.run),
        **{name: None if measured is None else getattr(measured, name) for name in MEASURED},
        **{name: compute(result) for name, compute in _COMPUTATIONS.items()},
        **setup_columns(result.record),
    }


def _against_publication(result: Result) -> str | None:
    """Return `passes` or `below` in comparison with the published step time; None if there is none.

    Published step times are for performance runs only.
    """
    over = result.measurement and result.measurement.step_time_over_published
    return against_publication(over) if over and result.run.mode is Mode.PERFORMANCE else None


def _gpu_hours(result: Result) -> float | None:
    return gpu_hours(result.run.recipe.gpus, result.status.started_at, result.status.ended_at)


def _price_per_million_tokens(result: Result) -> float | None:
    rate = result.measurement and result.measurement.tokens_per_s_per_gpu
    try:
        price = load_cluster(result.run.cluster).price_per_gpu_hour
    except UserError:  # an imported run may be of a cluster that has no file here
        return None
    return 1e6 * price / (3600 * rate) if price and rate else None


def _goodput_percent(result: Result) -> float | None:
    started_at, ended_at, times = result.status.started_at, result.status.ended_at, job_times(result)
    if times is None or started_at is None or ended_at is None or ended_at <= started_at:
        return None
    return 100 * times.in_steps_s / (ended_at - started_at)


def _job_time(part: str) -> Callable[[Result], float | None]:
    """Return a function that gives the seconds that a run's job spent in `part`, a field of `JobTimes`."""

    def compute(result: Result) -> float | None:
        times = job_times(result)
        return None if times is None else getattr(times, part)

    return compute


def _queue_wait_s(result: Result) -> float | None:
    started_at = result.status.started_at
    return None if started_at is None else started_at - result.job.submitted_at


def _stragglers(result: Result) -> str | None:
    return what_stands_apart(rank_times(result.log.rank_times), gpu_samples(result.log.gpu_samples))


_COMPUTATIONS: Mapping[str, Callable[[Result], Any]] = {
    "job_name": lambda result: result.job.name,
    "against_publication": _against_publication,
    "gpu_hours": _gpu_hours,
    "price_per_million_tokens": _price_per_million_tokens,
    "goodput_percent": _goodput_percent,
    "in_steps_s": _job_time("in_steps_s"),
    "first_steps_s": _job_time("first_steps_s"),
    "in_checkpoints_s": _job_time("in_checkpoints_s"),
    "submitted_at": lambda result: result.job.submitted_at,
    "started_at": lambda result: result.status.started_at,
    "ended_at": lambda result: result.status.ended_at,
    "queue_wait_s": _queue_wait_s,
    "network": lambda result: result.log.network and result.log.network.summary,
    "stragglers": _stragglers,
    "dag_id": lambda result: result.submitted.provenance.dag_id,
    "dag_run_id": lambda result: result.submitted.provenance.dag_run_id,
    "task_id": lambda result: result.submitted.provenance.task_id,
    "map_index": lambda result: result.submitted.provenance.map_index,
    "sweep": lambda result: result.submitted.provenance.sweep,
    "log_path": lambda result: result.log.path,
    "origin": lambda result: result.submitted.provenance.origin,
}
"""Functions that compute the value of a column, by its name."""
