"""The operator that starts further runs of cells whose results look slower or faster, to make sure."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow.sdk import BaseOperator, Context

from steptime.airflow.base import airflow_errors, task_key
from steptime.airflow.budgets import store_plan
from steptime.airflow.connections import airflow_connection
from steptime.airflow.sweep.cells import (
    cells_as_xcom,
    load_plan,
    rows_by_cell,
    runs_to_store,
    runs_with_staged,
)
from steptime.clusters.config import ClusterConfig, load_cluster, open_cluster
from steptime.errors import SystemFailure, UserError, one_line
from steptime.judging.comparison import compare_cells
from steptime.judging.node_effects import EVIDENCE_S
from steptime.judging.node_pairs import newest_node_sweep
from steptime.recipes.models import Mode, OptionValue, Run
from steptime.recipes.node_lists import expand_nodes, fold_nodes
from steptime.recipes.notation import format_hours
from steptime.recipes.request import parse_request
from steptime.recipes.sweep_planning import (
    MOST_CELLS,
    Cell,
    SweepPlan,
    cell_plan,
    confirmation_cells,
    confirmation_number,
    expand_cell,
)
from steptime.staging.checking import check_plan
from steptime.store.budgets import BudgetExceeded
from steptime.store.ledger import Ledger, LedgerJob
from steptime.store.run_queries import Store

_ANSWERS_WITHIN_S = 60


class ConfirmOperator(BaseOperator):
    """Plans confirmation runs: further runs of cells in which this sweep suspects a slowdown or speedup.

    It plans as many as are needed to confirm or dismiss each suspicion, worst cells first, within what is
    left of the sweep's budget; the cluster's own budget may refuse all of them. They run on other nodes if
    the cluster can exclude nodes. Returns what `runs_with_staged` does, and the added cells as `cells`.

    A retry, or clearing the task, keeps the runs that have begun, which it finds in the job ledger, and adds
    the cells that have become suspect since; no run is started twice.

    :param checked: what `CheckSweepOperator` returned. (templated)
    :param staged: what `StageSweepOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("checked", "staged")
    ui_color: str = "#eef3e2"

    def __init__(self, *, checked: Any, staged: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checked = checked
        self.staged = staged

    def execute(self, context: Context) -> dict[str, Any]:
        """Compare the sweep's runs with their history; plan confirmation runs where a change is suspected."""
        if not self.checked or not self.staged:  # refused, rejected, or not staged
            return _as_xcom((), {})
        if not self.checked["confirm_up_to_gpu_hours"]:
            self.log.info("no cell is run again to confirm a change: the sweep's file has 'confirm: false'")
            return _as_xcom((), {})
        with airflow_errors():
            plan = load_plan(self, context, self.checked)
            begun = _begun(plan, _jobs_of_dag_run(context, Ledger(self.log.warning)))
            confirmations = self._committed(context, begun, self._added(context["ti"], plan, begun))
        staged = {run["run"]: run["staged"] for run in self.staged["runs"]}
        of_confirmation = {
            confirmation.label: staged[cell.label]
            for confirmation in confirmations
            for cell in plan.cells
            if confirmation_number(confirmation.label, cell)
        }
        return _as_xcom(confirmations, of_confirmation)

    def _added(self, ti: Any, plan: SweepPlan, confirmations: Sequence[Cell]) -> list[Cell]:
        """Plan confirmation runs of the suspected cells that have none in `confirmations` so far."""
        store = Store()
        ran = _ran(ti, plan, store)
        suspicions = [
            suspicion
            for suspicion in _suspicions(store, ran)
            if not any(confirmation_number(cell.label, suspicion.cell) for cell in confirmations)
        ]
        slow = _slow_nodes(store, suspicions[0].cell.request.cluster) if suspicions else ()
        used_hours = sum(cell.gpu_hours_max for cell in confirmations) + sum(
            _gpu_hours(cell, rows) for cell, rows in ran
        )
        room = plan.confirm_up_to_gpu_hours - used_hours
        added: list[Cell] = []
        for cell, runs, checkpoint, change, nodes in suspicions:
            repeats = max(planned.repeat for planned in (*plan.cells, *confirmations, *added))
            apart = node_exclusion(cell, nodes, slow)
            cells = confirmation_cells(
                cell, runs, checkpoint=checkpoint, after=repeats, cluster_options=apart.cluster_options
            )
            check_plan(cell_plan(cells[0]))
            hours = sum(confirmation.gpu_hours_max for confirmation in cells)
            self.log.info(
                "%s is suspected to be %s by %.1f %%: %d confirmation runs confirm or dismiss it, %s",
                *(cell.label, "slower" if change > 0 else "faster", abs(change), runs, apart.words),
            )
            if len(confirmations) + len(added) + len(cells) > MOST_CELLS:
                self.log.warning(
                    "no confirmation run is started: Airflow maps a task over at most %d", MOST_CELLS
                )
                continue
            if hours > room:
                self.log.warning(
                    "no confirmation run is started: they may take %s GPU-hours, and the sweep has %s left",
                    *(format_hours(hours), format_hours(max(0.0, room))),
                )
                continue
            room -= hours
            added += cells
        if not added:
            self.log.info("no confirmation runs to add")
        return added

    def _committed(self, context: Context, confirmations: list[Cell], added: list[Cell]) -> list[Cell]:
        """Reserve the GPU-hours of `added`; return all runs, or only `confirmations` if a budget is short."""
        try:
            if added:
                store_plan(self, context, runs_to_store(added))
        except BudgetExceeded as error:
            self.log.warning("no confirmation run is started: %s", error)
            return confirmations
        return [*confirmations, *added]


def _as_xcom(cells: Sequence[Cell], staged: Mapping[str, Any]) -> dict[str, Any]:
    return {**runs_with_staged(cells, staged), "cells": cells_as_xcom(cells)}


def _jobs_of_dag_run(context: Context, ledger: Ledger) -> list[LedgerJob]:
    run_after = context["dag_run"].run_after.timestamp()  # not those of a deleted DAG run with the same id
    jobs = asyncio.run(ledger.jobs_of_dag_run(task_key(context)))
    return [job for job in jobs if job.run_after == run_after and job.run.mode is Mode.PERFORMANCE]


def _begun(plan: SweepPlan, jobs: Sequence[LedgerJob]) -> list[Cell]:
    """Return the confirmation runs of a sweep's cells that are in the ledger, by map index."""
    jobs_by_cell: dict[str, tuple[Cell, list[LedgerJob]]] = {}
    for job in sorted(jobs, key=lambda job: job.map_index):
        for cell in plan.cells:
            if confirmation_number(job.cell, cell):
                jobs_by_cell.setdefault(cell.label, (cell, []))[1].append(job)
    begun: list[Cell] = []
    for cell, of_cell in jobs_by_cell.values():
        request = parse_request(of_cell[0].provenance.options)
        begun += confirmation_cells(
            cell,
            max(confirmation_number(job.cell, cell) for job in of_cell),
            checkpoint=request.checkpoint,
            after=max(planned.repeat for planned in (*plan.cells, *begun)),
            cluster_options=request.cluster_options,
        )
    return begun


class _Suspicion(NamedTuple):
    cell: Cell
    runs: int
    """Number of confirmation runs that are still needed to decide it."""
    checkpoint: bool
    """Whether saving or loading a checkpoint is suspected."""
    change_percent: float
    nodes: str
    """Nodes of the runs that raised the suspicion."""


def _ran(ti: Any, plan: SweepPlan, store: Store) -> list[tuple[Cell, list[dict[str, Any]]]]:
    """Return the cells of the plan, with their rows in the store."""
    rows = rows_by_cell(store, ti.dag_id, ti.run_id)
    return [(cell, rows.get(cell.label, [])) for cell in plan.cells]


def _gpu_hours(cell: Cell, rows: Sequence[Mapping[str, Any]]) -> float:
    """Return a cell's GPU-hours, or their upper limit if one of its jobs is not in the store."""
    hours = [row["gpu_hours"] for row in rows]
    return sum(hours) if len(hours) == cell.jobs and None not in hours else cell.gpu_hours_max


def _suspicions(store: Store, ran: Sequence[tuple[Cell, list[dict[str, Any]]]]) -> list[_Suspicion]:
    """Return the cells suspected to have changed since a run of this sweep, largest slowdown first."""
    compared = compare_cells(store, [row for _, rows in ran for row in rows])
    cells = {row["job_name"]: cell for cell, rows in ran for row in rows}
    suspicions: dict[str, _Suspicion] = {}
    for finding in compared.findings:
        row, missing = finding.run.row, finding.confirmation_runs_wanted
        cell = cells.get(row["job_name"])
        suspicion = finding.series_state.suspicion
        if cell is not None and missing and suspicion is not None:
            pair = row["mode"] != Mode.PERFORMANCE
            nodes = finding.judgement.placement.suspected if finding.judgement.placement else ""
            new = _Suspicion(cell, missing, pair, 100 * (suspicion.change or 0), nodes)
            worse = suspicions.get(cell.label, new)
            suspicions[cell.label] = worse._replace(
                runs=max(missing, worse.runs),
                checkpoint=pair or worse.checkpoint,
                nodes=fold_nodes((*expand_nodes(worse.nodes), *expand_nodes(nodes))),
            )
    return sorted(suspicions.values(), key=lambda suspicion: -suspicion.change_percent)  # slower ones first


def _slow_nodes(store: Store, cluster: str) -> tuple[str, ...]:
    """Return the nodes that were slow in the newest node sweep of the last four weeks.

    A node sweep runs on each node and on pairs of nodes.
    """
    swept = newest_node_sweep(store, store.results(cluster=cluster, since=time.time() - EVIDENCE_S))
    return tuple(swept.slow_nodes) if swept else ()


class NodeExclusion(NamedTuple):
    """Which nodes the confirmation runs of a suspected cell avoid."""

    cluster_options: dict[str, OptionValue] | None
    """Cluster options for the confirmation runs' requests; None to use those of the cell."""
    words: str
    """Where the confirmation runs then run, as the end of a sentence: `without node3`."""


def node_exclusion(cell: Cell, nodes: str, slow: Sequence[str] = ()) -> NodeExclusion:
    """Return how a cell's confirmation runs avoid `nodes`, such as `node[1-4]`, if enough others remain.

    The nodes in `slow`, which a node sweep found to be slow, are excluded too if enough others then remain.
    If the cluster does not answer, no node is excluded: starting the runs matters more than where they run.
    """
    if slow:
        wider = node_exclusion(cell, fold_nodes({*expand_nodes(nodes), *slow}))
        if wider.cluster_options is not None:
            return wider._replace(words=f"{wider.words} (slow in a node sweep: {fold_nodes(slow)})")
    if not nodes:
        return NodeExclusion(None, "on any nodes, as it is not known on which it ran")
    config = load_cluster(cell.request.cluster)
    options: dict[str, OptionValue] | None = None
    for run in expand_cell(cell):
        apart = config.avoiding(run, expand_nodes(nodes))
        if config.placement_test(run) is None:
            return NodeExclusion(None, f"on any nodes, as cluster {config.name} takes no nodes to leave out")
        if apart == run:
            return NodeExclusion(None, f"on {nodes} again, which its request names")
        if refusal := asyncio.run(_refusal(config, apart)):
            return NodeExclusion(None, f"on any nodes, as there are none without {nodes}: {refusal}")
        options = apart.cluster_options
    return NodeExclusion(options, f"without {nodes}")


async def _refusal(config: ClusterConfig, run: Run) -> str:
    """Return why the cluster has no nodes for the run, or does not answer; empty if it has nodes."""
    try:
        async with open_cluster(config, airflow_connection) as cluster:
            done = await cluster.run(config.placement_test(run) or (), timeout_s=_ANSWERS_WITHIN_S)
    except (UserError, SystemFailure) as error:
        return one_line(str(error), at_most=300)
    if done.exit_code == 0:
        return ""
    return one_line(done.stderr.strip() or f"exit code {done.exit_code}", at_most=300)
