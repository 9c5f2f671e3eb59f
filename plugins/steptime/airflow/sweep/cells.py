"""The inputs of a sweep's mapped training tasks, and the stored runs of its cells."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from steptime.airflow.base import as_json
from steptime.airflow.installation import own_runs
from steptime.recipes.sweep_planning import Cell, cell_plan
from steptime.store.run_queries import Store
from steptime.store.run_records import parse_record


def runs_with_staged(cells: Iterable[Cell], staged: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the inputs of the mapped training tasks, as JSON values: lists `runs` and `checkpoint_pairs`.

    An item is for one run, or for a pair of a saving and a loading run; it includes the run's cell and the
    cell's staged files, which are in `staged` by the cell's label.
    """
    runs, pairs = [], []
    for cell in cells:
        planned = cell_plan(cell)
        common = {"staged": staged[cell.label], "sweep_cell": as_json(cell)}
        runs += [{"run": as_json(run), **common} for run in planned.runs]
        pairs += [
            {"save": as_json(pair.save), "load": as_json(pair.load), **common}
            for pair in planned.checkpoint_pairs
        ]
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
