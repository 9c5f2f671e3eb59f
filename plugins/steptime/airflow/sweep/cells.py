"""What a sweep's tasks pass on: its cells' numbers as XCom, their plans in the job ledger, staged files."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from pydantic_core import from_json

from steptime.airflow.base import task_key
from steptime.airflow.installation import own_runs
from steptime.airflow.xcom import returned_by
from steptime.errors import SystemFailure
from steptime.measure.repeating import make_request
from steptime.recipes.models import Mode
from steptime.recipes.planning import CheckpointPair, Plan
from steptime.recipes.request import parse_request
from steptime.recipes.sweep_planning import Cell, SweepPlan, expand_cell
from steptime.store.ledger import Ledger
from steptime.store.run_models import LedgerPlan
from steptime.store.run_queries import Store
from steptime.store.run_records import parse_record


def runs_to_store(cells: Iterable[Cell], *, reserving: Collection[Cell] | None = None) -> list[LedgerPlan]:
    """Return the runs of cells for the job ledger, with the options of their cell's request.

    Those of the cells in `reserving` reserve GPU-hours in their clusters' budgets; None for all.
    """
    labels = None if reserving is None else {cell.label for cell in reserving}
    planned = []
    for cell in cells:
        options = cell.request.model_dump(mode="json", exclude_none=True)
        planned += [
            LedgerPlan(
                run=run,
                request=make_request(run, options),
                options=options,
                sweep=cell.sweep if run.trial is None else None,
                reserves=labels is None or cell.label in labels,
            )
            for run in expand_cell(cell)
        ]
    return planned


def cells_as_xcom(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Return cells as JSON without their plans, which are in the job ledger."""
    return [from_json(cell.model_dump_json(exclude={"planned"})) for cell in cells]


def plan_as_xcom(plan: SweepPlan) -> dict[str, Any]:
    """Return a sweep's plan as JSON without the plans of its cells, which are in the job ledger."""
    numbers: dict[str, Any] = from_json(plan.model_dump_json(exclude={"cells"}))
    return {**numbers, "cells": cells_as_xcom(plan.cells)}


def load_plan(task: BaseOperator, context: Context, checked: Mapping[str, Any]) -> SweepPlan:
    """Return the plan of a sweep's DAG run: its numbers from XCom, the plans of its cells from the ledger.

    Raises SystemFailure if the ledger lacks a cell.
    """
    checked = returned_by(task.dag.roots[0].task_id, checked)
    return SweepPlan.model_validate({**checked, "cells": load_cells(task, context, checked["cells"])})


def load_cells(task: BaseOperator, context: Context, cells: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """Return the cells of `cells_as_xcom` with their plans from the job ledger.

    Raises SystemFailure if the ledger lacks a cell.
    """
    by_cell: dict[str | None, dict[Mode, LedgerPlan]] = defaultdict(dict)
    for planned in asyncio.run(Ledger(task.log.warning).planned_runs(task_key(context))).values():
        by_cell[planned.run.cell][planned.run.mode] = planned
    return [_load_cell(cell, by_cell[cell["label"]]) for cell in cells]


def _load_cell(cell: Mapping[str, Any], by_mode: Mapping[Mode, LedgerPlan]) -> Cell:
    if len(by_mode) != cell["jobs"]:
        raise SystemFailure(
            f"the metrics store does not have the plan of the cell {cell['label']}: was the store replaced? "
            "Clear the DAG run's first task to plan again"
        )
    request = parse_request(by_mode[Mode.PERFORMANCE].options)
    pairs: tuple[CheckpointPair, ...] = ()
    if Mode.CHECKPOINT_SAVE in by_mode:
        pair = CheckpointPair(save=by_mode[Mode.CHECKPOINT_SAVE].run, load=by_mode[Mode.CHECKPOINT_LOAD].run)
        pairs = (pair,)
    plan = Plan(
        request=request,
        runs=(by_mode[Mode.PERFORMANCE].run,),
        checkpoint_pairs=pairs,
        gpu_hours_max=cell["gpu_hours_max"],
        cluster_gpu_type=str(request.gpu_type),
    )
    return Cell.model_validate({**cell, "planned": plan})


def runs_with_staged(cells: Iterable[Cell], staged: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the inputs of the mapped training tasks, as JSON values: lists `runs` and `checkpoint_pairs`.

    An item has the name of a run, or of a saving and a loading run; and the staged files of the run's cell,
    which are in `staged` by the cell's label.
    """
    runs, pairs = [], []
    for cell in cells:
        performance, *pair = (run.name for run in expand_cell(cell))
        runs.append({"run": performance, "staged": staged[cell.label]})
        if pair:
            save, load = pair
            pairs.append({"save": save, "load": load, "staged": staged[cell.label]})
    return {"runs": runs, "checkpoint_pairs": pairs}


def rows_by_cell(store: Store, dag_id: str, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return the stored runs of a sweep's DAG run, oldest first, by the label of their cell."""
    rows = sorted(own_runs(store, dag_id, run_id), key=lambda row: row["submitted_at"])
    records = store.records([row["job_name"] for row in rows])
    by_cell = defaultdict(list)
    for row in rows:
        record = parse_record(records[row["job_name"]])
        if record is not None and record.run.cell is not None:
            by_cell[record.run.cell].append(row)
    return dict(by_cell)
