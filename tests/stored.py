"""Put results into a store, as the tasks from `parse` to `publish` do one after the other."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from steptime.judging import judgements
from steptime.results import writing
from steptime.results.models import Result, Verdict
from steptime.results.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection


class CheckedResult(Result):
    """A result with the verdict that `validate` has to reach."""

    verdict: Verdict


def publish(store: Store, result: Result) -> bool:
    """Store, check and publish a result, or reject it if its verdict says so; judge its series.

    Return whether this changed anything.
    """
    assert isinstance(result, CheckedResult)
    name, verdict = result.job.name, result.verdict
    changed = judgements.keep_measured(store, result)
    changed |= judgements.keep_verdict(store, name, verdict)
    return (verdict.valid and judgements.publish(store, name)) or changed


def write(store: Store, result: Result) -> bool:
    """Do what `publish` does, but judge nothing."""
    assert isinstance(result, CheckedResult)
    name, verdict = result.job.name, result.verdict
    changed = writing.keep_measured(store.url, result, judge_nothing)
    changed |= writing.keep_verdict(store.url, name, verdict, judge_nothing)
    return (verdict.valid and writing.publish(store.url, name, judge_nothing)) or changed


def write_node_sweep(
    store: Store, make_result: Callable[..., Any], runs: Mapping[tuple[str, ...], float], **fields: Any
) -> None:
    """Write the runs of a node sweep, given their seconds by nodes."""
    for number, (nodes, seconds) in enumerate(runs.items()):
        shared = {"gpus": 2 * len(nodes), "step_times": [seconds] * 20, **fields}
        plain = make_result(f"pairs-{number}", **shared)
        measured = plain.measurement.model_copy(update={"bus_bandwidth_gb_s": 1 / seconds})
        status = plain.status.model_copy(update={"nodes": nodes})
        made_by = plain.submitted.made_by.model_copy(update={"sweep": "nodes"})
        replaced = {"measurement": measured, "status": status, "made_by": made_by}
        write(store, make_result(f"pairs-{number}", **shared, **replaced))


def judge_nothing(_connection: "Connection", _row: Mapping[str, Any]) -> None:
    """Judge nothing."""
