"""steptime's Airflow assets: they start other DAGs, and their events carry the results.

from airflow.sdk import DAG, task
from steptime.airflow.assets import published_results

with DAG("after_llama31", schedule=[published_results("llama3.1")]):
    ...  # context["triggering_asset_events"] has the events
"""

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import Asset

from steptime.judging.findings import Finding
from steptime.recipes.workloads import load_workload
from steptime.store.columns import COLUMNS

_GROUP = "steptime"
_JUDGED = ("verdict", "series_state", "change_percent", "minimum_detectable_change_percent", "since")


def published_results(workload: str) -> Asset:
    """Return the asset that is updated when a valid run of a workload is published.

    A family's name without a release, such as `llama3.1`, means the family's default release. Raises
    UserError for an unknown workload.
    """
    name = load_workload(workload).workload
    return Asset(name=f"steptime_results_{name}", uri=f"x-steptime://results/{name}", group=_GROUP)


def finished_sweep(sweep: str) -> Asset:
    """Return the asset that is updated when all runs of a sweep have valid results."""
    return Asset(name=f"steptime_sweep_{sweep}", uri=f"x-steptime://sweeps/{sweep}", group=_GROUP)


def extra_of_run(row: Mapping[str, Any], finding: Finding | None) -> dict[str, Any]:
    """Return the field `extra` of the asset event for a published run: its numbers and its verdict.

    The verdict says whether the run's series (the comparable runs over time) got slower or faster. `verdict`,
    `series_state` (`suspected`, `confirmed`, …), `change_percent`, `minimum_detectable_change_percent` and
    `since` are those that the web page *This week* shows; they are None for runs that are not compared with
    their history, such as profiles. `against_publication` compares the run with
    the step time that NVIDIA published for its configuration; None if none is published.
    """
    numbers = {column.name: row[column.name] for column in COLUMNS if column.in_events}
    if finding is None:
        return numbers | dict.fromkeys(_JUDGED) | {"changes": []}
    verdict = finding.verdict_columns
    return numbers | {name: verdict[name] for name in _JUDGED} | {"changes": list(finding.judgement.changes)}


def extra_of_sweep(sweep: str, sentence: str, cells: Iterable[Finding]) -> dict[str, Any]:
    """Return the field `extra` of the asset event for a finished sweep.

    `sentence` sums up the sweep. `cells` has what `extra_of_run` returns, for the newest run of each series:
    one for performance, and two more where a checkpoint is saved and loaded.
    """
    return {
        "sweep": sweep,
        "sentence": sentence,
        "cells": [extra_of_run(finding.run.row, finding) for finding in cells],
    }
