"""Compare the recent runs on a node with runs of the same cells on other nodes."""

import statistics
import time
from collections import defaultdict
from typing import Any

from steptime.judging.incidents import ACTIVE, incidents
from steptime.judging.node_effects import EVIDENCE_S, node_effects
from steptime.judging.node_evidence import read_node_runs
from steptime.judging.node_pairs import newest_node_sweep
from steptime.judging.run_findings import add_verdicts
from steptime.judging.series import Series
from steptime.measure.gpu_samples import gpu_samples
from steptime.measure.stragglers import rank_times
from steptime.store.run_queries import Store
from steptime.store.run_records import split_nodes


def describe_node(store: Store, cluster: str, node: str, now: float | None = None) -> dict[str, Any]:
    """Return what the runs of the last four weeks tell about a node, as JSON.

    - `runs`: the runs on the node, newest first, each with its change against the baseline of its series
      (`run_change_percent`), the median change of the series' runs on other nodes (`elsewhere_percent`; None
      if there are none), how the node's ranks compare with the run's others (`ranks_percent`; None if not
      timed), and the power, clock and temperature of its GPUs (`gpus`; None if not sampled).
    - `difference_percent`: how much slower training runs on the node are than runs of the same cells on other
      nodes, with the ends of its 95 % interval, `low_percent` and `high_percent`; during an active incident
      only runs since its start count. All three are None if there is nothing to compare. `cells`: the number
      of cells that ran there.
    - `incident`: title of an active incident that names the node; `since`: its start in Unix time; or None.
    - `sweep`: name of the newest node sweep (runs on single nodes and on pairs) with a run on a pair that
      includes this node, None if there is none; `pairs`: sentences on what it found about the node.
    - `excluded`: whether the newest job of the cluster, `newest_job`, excludes the node.
    """
    since = (time.time() if now is None else now) - EVIDENCE_S
    rows = add_verdicts(store, store.results(include_rejected=True, cluster=cluster, since=since))
    named = [
        incident
        for incident in incidents(store, closed_since=since)
        if incident.cluster == cluster and node in incident.nodes
    ]
    active = next((incident for incident in named if incident.state in ACTIVE), None)
    elsewhere = defaultdict[Series, list[float]](list)
    for row in rows:
        if row["run_change_percent"] is not None and not _had(row, node):
            elsewhere[Series.from_row(row)].append(row["run_change_percent"])
    usual = {series: statistics.median(changes) for series, changes in elsewhere.items()}
    began = since if active is None else active.since
    runs = [run for run in read_node_runs(store, since + EVIDENCE_S, cluster) if run.at >= began]
    effect = next(iter(node_effects(runs, node)), None)
    names = ("job_name", "label", "submitted_at", "state", "run_change_percent", "verdict", "series_state")
    of_node = [row for row in rows if _had(row, node)]
    jobs = [row["job_name"] for row in of_node]
    samples = {job: gpu_samples(record) for job, record in store.trainer_records("gpu_samples", jobs).items()}
    times = {job: rank_times(record) for job, record in store.trainer_records("rank_times", jobs).items()}
    ranks = {
        job: 100 * (ratio - 1)
        for job, timed in times.items()
        if timed is not None and (ratio := timed.node_ratios.get(node)) is not None
    }
    swept = newest_node_sweep(store, of_node, node)
    return {
        "node": node,
        "cluster": cluster,
        "runs": [
            {name: row[name] for name in names}
            | {
                "elsewhere_percent": usual.get(Series.from_row(row)),
                "ranks_percent": ranks.get(row["job_name"]),
                "gpus": None
                if (sampled := samples.get(row["job_name"])) is None
                else sampled.describe_node(node),
            }
            for row in of_node
        ],
        "difference_percent": effect and 100 * effect.change,
        "low_percent": effect and 100 * effect.low,
        "high_percent": effect and 100 * effect.high,
        "cells": effect.cells if effect else 0,
        "incident": active and active.title,
        "since": active and active.since,
        "sweep": swept and swept.sweep,
        "pairs": swept.about(node) if swept else (),
        "excluded": bool(rows) and node in store.excluded_nodes(rows[0]["job_name"]),
        "newest_job": rows[0]["job_name"] if rows else None,
    }


def _had(row: dict[str, Any], node: str) -> bool:
    return node in split_nodes(row["nodes"])
