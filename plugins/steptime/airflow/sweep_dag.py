"""The DAG that starts the runs of a sweep.

    check_sweep ─▶ approve ─▶ cells of CLUSTER_N_gpus ─▶ CLUSTER_N_gpus [per cell]  run ─▶ outcome
    report

There is a group for each cluster and number of GPUs. `approve` is skipped below the sweep's own limit. `run`
starts the DAG of a workload family for one cell and holds N slots of the pool `gpus_CLUSTER` until that run
has ended; `outcome` fails if it failed. `report` decides the state of the DAG run.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, TriggerRule, task_group

from steptime.airflow.pools import pool_name
from steptime.airflow.selecting import SelectOperator
from steptime.airflow.sweep_cells import Group, all_groups
from steptime.airflow.sweep_operators import (
    RUN_TASK,
    CellOutcomeOperator,
    CheckSweepOperator,
    ReportSweepOperator,
    RunCellOperator,
    approval,
)
from steptime.recipes.sweeps import list_sweeps

_RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=10)}
"""For what infrastructure does: a run that failed, and the user's errors, are never retried."""


def sweep_dag(dag_id: str, *, sweep: str, cron: str | None = None) -> DAG:
    """The DAG that runs a sweep of `config/sweeps`, by default the one named `sweep`.

    Args:
        dag_id: the DAG's id.
        sweep: what its trigger form shows, and what its schedule runs.
        cron: when it starts by itself, in UTC. Such a DAG is made paused: nothing trains on a machine before
            somebody has asked for it, and nothing that was missed is made up for.
    """
    schedule = None
    if cron is not None:
        # With its default Airflow would also run the time just past, up to a tenth of the period ago.
        schedule = CronTriggerTimetable(cron, timezone="UTC", run_immediately=timedelta(0))
    groups = all_groups()
    with DAG(
        dag_id=dag_id,
        description="Start the runs of a sweep" + (f", by default {sweep}" if cron is None else f": {sweep}"),
        doc_md=_DOCUMENTATION,
        schedule=schedule,
        catchup=False,
        is_paused_upon_creation=None if cron is None else True,
        params={
            "sweep": Param(
                sweep,
                type="string",
                enum=sorted({sweep, *list_sweeps()}),
                title="Sweep",
                description="A file of config/sweeps; 'steptime sweep plan' shows what it would run.",
            )
        },
        default_args=_RETRIES,
        tags=["steptime", "sweep"],
    ) as dag:
        check = CheckSweepOperator(task_id="check_sweep", groups=[group.group_id for group in groups])
        checked = check.output
        approve = approval(checked)
        report = ReportSweepOperator(task_id="report", checked=checked)
        # No setup: behind one, `cells` could not start where `approve` is skipped.
        report.as_teardown(on_failure_fail_dagrun=True)
        for group in groups:
            # `approve` may be skipped.
            cells = SelectOperator(
                task_id=f"cells_of_{group.group_id}",
                returned=checked,
                field=group.group_id,
                trigger_rule=TriggerRule.NONE_FAILED,
            )
            approve >> cells
            _run_cells(group).expand(cell=cells.output) >> report
        if not groups:
            approve >> report
    return dag


def _run_cells(group: Group) -> Any:
    """The tasks of one cell, to be mapped over those of a group."""

    @task_group(group_id=group.group_id)
    def run_cell(cell: Any) -> None:
        run = RunCellOperator(
            task_id=RUN_TASK,
            cell=cell,
            pool=pool_name(group.cluster),
            pool_slots=group.slots,
            # The largest first: small ones always find room, and would keep them waiting.
            priority_weight=group.slots,
            weight_rule="absolute",
        )
        run >> CellOutcomeOperator(task_id="outcome", cell=cell, started_in=run.task_id)

    return run_cell


_DOCUMENTATION = """Runs a sweep: a file of `config/sweeps` with matrices of runs, exclusions and a budget.

Each cell is a DAG run of its workload's DAG. A task waits for it and holds as many slots of the pool
`gpus_<cluster>` as the cell has GPUs; `steptime up` makes these pools, elsewhere `steptime sweep pools` does.

Marking a task here as failed stops the waiting, not the run that it has started: its button *Run of this
cell* leads there.
"""
