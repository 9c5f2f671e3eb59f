"""Put results into a store, as the tasks from `parse` to `publish` do one after the other."""

from steptime.judging.judgements import run_writer
from steptime.measure.column_values import column_values
from steptime.measure.repeating import make_request
from steptime.store.run_models import LedgerPlan, Result, Verdict
from steptime.store.writing import RunWriter


class CheckedResult(Result):
    """A result with the verdict that `validate` has to reach."""

    verdict: Verdict


def publish(store, result):
    """Store, check and publish a result, or reject it if its verdict says so; judge its series.

    Return whether this changed anything.
    """
    assert isinstance(result, CheckedResult)
    name, verdict = result.job.name, result.verdict
    writer = run_writer(store)
    changed = writer.store_measurement(result)
    changed |= writer.store_verdict(name, verdict)
    return (verdict.valid and writer.publish(name)) or changed


def write(store, result):
    """Do what `publish` does, but judge nothing."""
    assert isinstance(result, CheckedResult)
    name, verdict = result.job.name, result.verdict
    writer = unjudged_writer(store.url)
    changed = writer.store_measurement(result)
    changed |= writer.store_verdict(name, verdict)
    return (verdict.valid and writer.publish(name)) or changed


def write_node_sweep(store, make_result, runs, **fields):
    """Write the runs of a node sweep, given their seconds by nodes."""
    for number, (nodes, seconds) in enumerate(runs.items()):
        shared = {"gpus": 2 * len(nodes), "step_times": [seconds] * 20, **fields}
        plain = make_result(f"pairs-{number}", **shared)
        measured = plain.measurement.model_copy(update={"bus_bandwidth_gb_s": 1 / seconds})
        status = plain.status.model_copy(update={"nodes": nodes})
        provenance = plain.submitted.provenance.model_copy(update={"sweep": "nodes"})
        replaced = {"measurement": measured, "status": status, "provenance": provenance}
        write(store, make_result(f"pairs-{number}", **shared, **replaced))


def unjudged_writer(url):
    """Return a writer of runs that judges nothing."""
    return RunWriter(url, column_values, lambda _connection, _row: None)


def as_planned(run):
    """Return a run as a DAG run's first task stores it, if no option but its workload was requested."""
    return LedgerPlan(run=run, request=make_request(run, {}), options={})
