"""The newest numbers of each series (runs of one configuration) as OpenMetrics text, for Prometheus.

All metrics are gauges. Labels name series, clusters and verdicts only, not jobs or DAG runs, whose number
keeps growing. A series without a run in the last 31 days has no metrics.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from steptime.judging.comparison import compare_cells
from steptime.judging.detection import STATES
from steptime.judging.incidents import incidents
from steptime.judging.verdicts import VERDICTS
from steptime.measure.goodput import TRAINING, compute_goodput
from steptime.store.budgets import format_month, month_bounds
from steptime.store.run_queries import Store

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_RECENT_S = 31 * 86_400
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Metric(NamedTuple):
    name: str
    help: str


_NUMBERS = {
    "step_time_mean_s": _Metric("steptime_step_time_seconds", "Mean step time of the newest run's window."),
    "tokens_per_s": _Metric("steptime_tokens_per_second", "Tokens per second of all GPUs of the newest run."),
    "model_tflops_per_gpu": _Metric(
        "steptime_model_tflops_per_gpu", "Model TFLOP/s of each GPU, newest run."
    ),
    "mfu_percent": _Metric("steptime_mfu_percent", "Model flops utilization of the newest run."),
    "goodput_percent": _Metric("steptime_goodput_percent", "Part of the newest run's job in training steps."),
    "gpu_power_mean_w": _Metric("steptime_gpu_power_watts", "Mean power of each GPU, newest run."),
    "joules_per_token": _Metric("steptime_joules_per_token", "Energy of all GPUs per token, newest run."),
    "submitted_at": _Metric("steptime_run_submitted_timestamp_seconds", "When the newest run was submitted."),
}
_CHANGE = _Metric("steptime_change_percent", "Change against the baseline of the cell: above 0 is slower.")
_VERDICT = _Metric("steptime_verdict", "1 for the verdict of the cell, 0 for the others.")
_STATE = _Metric("steptime_series_state", "1 for the state of the cell's series, 0 for the others.")
_INCIDENTS = _Metric("steptime_incidents", "Incidents that are open or confirmed, silenced ones aside.")
_SILENCED = _Metric("steptime_incidents_silenced", "Incidents that are open or confirmed, but silenced.")
_GPU_HOURS = _Metric("steptime_month_gpu_hours", "GPU-hours of jobs in this calendar month (UTC).")
_GOODPUT = _Metric("steptime_month_goodput_percent", "Part of these GPU-hours in training steps.")
METRICS = (*_NUMBERS.values(), _CHANGE, _VERDICT, _STATE, _INCIDENTS, _SILENCED, _GPU_HOURS, _GOODPUT)

_Sample = tuple[_Metric, Mapping[str, str], float]


def openmetrics(store: Store, now: float) -> str:
    """Return the newest numbers of each series, and totals by cluster, as OpenMetrics text for Prometheus.

    Only runs that the reader of `store` may see count; `now` is Unix time.
    """
    month = month_bounds(format_month(now))[0]
    rows = store.results(include_rejected=True, since=min(month, now - _RECENT_S))
    samples_of: dict[_Metric, list[str]] = {metric: [] for metric in METRICS}
    for metric, labels, value in (*_sample_cells(store, rows), *_sample_clusters(store, rows, month)):
        pairs = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in labels.items())
        samples_of[metric].append(f"{metric.name}{{{pairs}}} {value}")
    lines = []
    for metric, samples in samples_of.items():
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge", *samples]
    return "\n".join([*lines, "# EOF", ""])


def _sample_cells(store: Store, rows: Sequence[Mapping[str, Any]]) -> Iterator[_Sample]:
    compared = compare_cells(store, [row for row in rows if row["state"] == "valid"])
    for name, finding in zip(compared.names, compared.findings, strict=True):
        series = finding.series
        labels = {"cell": name, "gpus": str(series["gpus"])}
        labels |= {column: series[column] for column in ("cluster", "workload", "mode")}
        for column, metric in _NUMBERS.items():
            if (value := finding.run.row[column]) is not None:
                yield metric, labels, value
        if finding.change_percent is not None:
            yield _CHANGE, labels, finding.change_percent
        for verdict in VERDICTS:
            yield _VERDICT, labels | {"verdict": verdict}, int(finding.verdict == verdict)
        for state in STATES:
            yield _STATE, labels | {"series_state": state}, int(finding.series_state.state == state)


def _sample_clusters(store: Store, rows: Sequence[Mapping[str, Any]], month: float) -> Iterator[_Sample]:
    active = Counter((incident.cluster, incident.is_silenced) for incident in incidents(store))
    lost = store.lost_jobs(since=month)
    for cluster in sorted({*(cluster for cluster, _ in active), *(row["cluster"] for row in (*rows, *lost))}):
        labels = {"cluster": cluster}
        yield _INCIDENTS, labels, active[cluster, False]
        yield _SILENCED, labels, active[cluster, True]
        goodput = compute_goodput(
            (row for row in rows if row["cluster"] == cluster and row["submitted_at"] >= month),
            (job for job in lost if job["cluster"] == cluster),
        )
        yield _GPU_HOURS, labels, goodput.allocated if goodput else 0.0
        if goodput:
            yield _GOODPUT, labels, goodput.percent[TRAINING]
