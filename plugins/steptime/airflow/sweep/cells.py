"""Plan and check a sweep's cells (its planned runs), and make the inputs of its mapped training tasks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from steptime.airflow.base import as_json
from steptime.airflow.installation import own_runs
from steptime.clusters.config import check_owner
from steptime.recipes.config_files import load_each, refuse
from steptime.recipes.planning import Plan
from steptime.recipes.sweep_planning import Cell, SweepPlan, cell_plan, plan_sweep
from steptime.recipes.sweeps import list_sweeps, load_sweep
from steptime.recipes.workloads import load_workloads
from steptime.results.record import parse_record
from steptime.results.store import Store
from steptime.staging.checking import check_plan


def checked_sweep(name: str, *, owner: str | None = None) -> SweepPlan:
    """Plan and check a sweep of `config/sweeps`. Raises UserError if it cannot be run.

    `owner` is the owner of the DAG that runs the sweep, whose permissions are checked; None outside of a DAG.
    """

    def check(planned: Plan) -> None:
        check_plan(planned)
        if owner is not None:
            check_owner(planned.all_runs, owner)

    return plan_sweep(load_sweep(name), check)


def planned_sweep(name: str) -> SweepPlan:
    """Plan a sweep of `config/sweeps`. Raises UserError for impossible runs.

    A sweep whose GPU type no cluster of `config/` has is planned, but not checked against a cluster.
    """
    sweep = load_sweep(name)
    return plan_sweep(sweep, check_plan if sweep.has_cluster else lambda _: None)


def check_config_files() -> None:
    """Check all workloads and sweeps of `config/`. Raises UserError with all mistakes."""
    _, broken_workloads = load_workloads()
    _, broken_sweeps = load_each(list_sweeps(), planned_sweep)
    refuse(broken_workloads, broken_sweeps)


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
    found = defaultdict(list)
    for row in rows:
        record = parse_record(records[row["job_name"]])
        if record is not None and record.run.cell is not None:
            found[record.run.cell].append(row)
    return dict(found)
