"""What steptime makes, as Airflow's assets: other DAGs run on them, and read what came of it from the event.

from airflow.sdk import DAG, task
from steptime.airflow.assets import published_results

with DAG("after_llama31", schedule=[published_results("llama3.1")]):
    ...  # context["triggering_asset_events"] has the events
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from steptime.recipes.workloads import load_workload

if TYPE_CHECKING:
    from steptime.results.store import Store

_GROUP = "steptime"

SWEEPS = AssetAlias(name="steptime_sweeps", group=_GROUP)
"""The outlet of every sweep's report, which names the sweep that it finished."""


def published_results(workload: str) -> Asset:
    """The asset that is updated when a valid run of a workload is published; without its release the newest.

    Raises UserError for an unknown workload.
    """
    name = load_workload(workload).workload
    return Asset(name=f"steptime_results_{name}", uri=f"steptime://results/{name}", group=_GROUP)


def finished_sweep(sweep: str) -> Asset:
    """The asset that is updated when a sweep has finished with valid results of all its cells."""
    return Asset(name=f"steptime_sweep_{sweep}", uri=f"steptime://sweeps/{sweep}", group=_GROUP)


def extra_of_run(store: "Store", row: Mapping[str, Any]) -> dict[str, Any]:
    """What the event of a published run, a row of the store, says: its numbers, and how it was judged.

    `verdict` is that against its history, `change_percent` relative to its baseline; `against_publication`
    is None where the document prints no step time.
    """
    from steptime.judging.judgements import judged_run
    from steptime.results.columns import COLUMNS

    judged = judged_run(store, row)
    standing = None if judged is None else judged.standing
    change = None if standing is None else standing.change
    return {column.name: row[column.name] for column in COLUMNS if column.in_events} | {
        "verdict": None if standing is None else standing.state,
        "direction": None if standing is None else standing.direction,
        "change_percent": None if change is None else 100 * change,
        "changes": [] if judged is None else list(judged.changes),
    }


def extra_of_sweep(sweep: str, sentence: str, cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the event of a finished sweep says: one sentence, and of each cell what its run's event says."""
    return {"sweep": sweep, "sentence": sentence, "cells": [dict(cell) for cell in cells]}
