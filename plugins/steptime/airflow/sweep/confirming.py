"""The operator that runs cells again that a sweep has found to be possibly slower."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow.sdk import BaseOperator, Context
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import TypeAdapter

from steptime.airflow.base import airflow_errors, as_json, dag_run_of
from steptime.airflow.budgets import commit_plan
from steptime.airflow.installation import own_runs
from steptime.airflow.sweep.elsewhere import elsewhere
from steptime.airflow.sweep.operators import run_id_of, started_run
from steptime.airflow.sweep.runs import RUN_TASK
from steptime.judging.comparison import compare_cells
from steptime.recipes.models import Mode
from steptime.recipes.node_lists import expand_nodes, fold_nodes
from steptime.recipes.notation import format_hours
from steptime.recipes.sweep_planning import Cell, SweepPlan, fresh_cells, is_fresh_of, plan_of, runs_of
from steptime.results.budgets import BudgetExceeded
from steptime.results.store import Store
from steptime.staging.checking import check_plan

_FRESH = "fresh_cells"


class ConfirmOperator(BaseOperator):
    """Plans fresh runs of the cells that are suspected to be slower since this sweep.

    It plans as many as decide it, worst cells first, and no more than the sweep's budget has left; the
    cluster's own budget may refuse all of them. They run on other nodes if the cluster can do that. Returns
    these cells as JSON. What was planned once is kept: a retry, or clearing the task, adds the cells that are
    suspected since, and starts nothing twice.

    :param checked: what `CheckSweepOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("checked",)
    ui_color: str = "#eef3e2"

    def __init__(self, *, checked: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checked = checked

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Look at how the cells stand, and plan."""
        if not self.checked:
            return []
        plan, kept = SweepPlan.model_validate(self.checked), context["task_state_store"]
        fresh = TypeAdapter(list[Cell]).validate_python(kept.get(_FRESH) or [])
        if not plan.confirm_up_to_gpu_hours:
            self.log.info("no fresh runs: the sweep's file has 'confirm: false'")
            return []
        with airflow_errors():
            fresh = self._committed(context, fresh, self._added(context["ti"], plan, fresh))
        planned = [as_json(cell) for cell in fresh]
        kept.set(_FRESH, [*planned], retention=NEVER_EXPIRE)
        return planned

    def _added(self, ti: Any, plan: SweepPlan, fresh: Sequence[Cell]) -> list[Cell]:
        """Fresh runs of the suspected cells that have none yet."""
        store = Store()
        ran = _ran(ti, plan, store)
        suspicions = [
            found
            for found in _suspicions(store, ran)
            if not any(is_fresh_of(one, found.cell) for one in fresh)
        ]
        taken = sum(cell.gpu_hours_max for cell in fresh) + sum(_gpu_hours(*one) for one in ran.values())
        room = plan.confirm_up_to_gpu_hours - taken
        added: list[Cell] = []
        for cell, runs, checkpoint, change, nodes in suspicions:
            repeats = max(one.repeat for one in (*plan.cells, *fresh, *added))
            apart = elsewhere(cell, nodes)
            cells = fresh_cells(cell, runs, checkpoint=checkpoint, after=repeats, exclude=apart.exclude)
            check_plan(plan_of(cells[0]))
            hours = sum(one.gpu_hours_max for one in cells)
            self.log.info(
                "%s is suspected to be slower by %.1f %%: %d fresh runs decide, %s",
                *(cell.label, change, runs, apart.words),
            )
            if hours > room:
                self.log.warning(
                    "these may take %s GPU-hours, of which the sweep has %s left: none is started",
                    *(format_hours(hours), format_hours(max(0.0, room))),
                )
                continue
            room -= hours
            added += cells
        if not added:
            self.log.info("no fresh runs to add")
        return added

    def _committed(self, context: Context, fresh: list[Cell], added: list[Cell]) -> list[Cell]:
        """All of them, if the cluster's budget has room; else those that were planned before."""
        wanted = [*fresh, *added]
        runs = {f"{cell.dag_id}/{run_id_of(context['ti'], cell, 1)}": runs_of(cell) for cell in wanted}
        try:
            if added:
                commit_plan(runs, held_by=dag_run_of(context), info=self.log.info)
        except BudgetExceeded as error:
            self.log.warning("no fresh run is started: %s", error)
            return fresh
        return wanted


class _Suspicion(NamedTuple):
    cell: Cell
    runs: int
    """How many decide it."""
    checkpoint: bool
    """Whether it is about saving or loading a checkpoint."""
    change_percent: float
    nodes: str
    """Of the run that raised it, or of the checkpoint's jobs if they did."""


def _ran(ti: Any, plan: SweepPlan, store: Store) -> dict[tuple[str, str], tuple[Cell, list[dict[str, Any]]]]:
    """The cells that were started, with the rows that the store has of them, by DAG and DAG run."""
    started = {
        (cell.dag_id, run_id): cell
        for index, cell in enumerate(plan.cells)
        if (run_id := started_run(ti, RUN_TASK, index)) is not None
    }
    return {run: (cell, own_runs(store, *run)) for run, cell in started.items()}


def _gpu_hours(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> float:
    """What a cell took, or what it may have taken if a job of it is not in the store."""
    taken = [row["gpu_hours"] for row in rows]
    return sum(taken) if len(taken) == cell.jobs and None not in taken else cell.gpu_hours_max


def _suspicions(
    store: Store, ran: Mapping[tuple[str, str], tuple[Cell, list[dict[str, Any]]]]
) -> list[_Suspicion]:
    """The cells that a run of this sweep made suspect of being slower, and that are not decided yet."""
    compared = compare_cells(store, [row for _, rows in ran.values() for row in rows])
    found: dict[str, _Suspicion] = {}
    for finding in compared.findings:
        row, missing = finding.run.row, finding.fresh_runs_wanted
        cell, _ = ran.get((row["dag_id"], row["dag_run_id"]), (None, None))
        if cell is not None and missing:
            pair = row["mode"] != Mode.PERFORMANCE
            nodes = finding.placement.suspected if finding.placement else ""
            worse = found.get(cell.label, _Suspicion(cell, missing, pair, finding.change_percent or 0, nodes))
            found[cell.label] = worse._replace(
                runs=max(missing, worse.runs),
                checkpoint=pair or worse.checkpoint,
                nodes=fold_nodes((*expand_nodes(worse.nodes), *expand_nodes(nodes))),
            )
    return list(found.values())
