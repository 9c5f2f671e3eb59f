"""The DAG that starts the runs of a sweep.

    check_sweep ─▶ approve ─▶ cells ─▶ cell [per cell]  run ─▶ outcome
                              confirm ─▶ fresh [per cell]  run ─▶ outcome
    report

`approve` is skipped below the sweep's own limit. `run` starts the DAG of a workload family for one cell and
waits until that run has ended; `outcome` fails if it failed. After all of them `confirm` has cells run again
that are suspected to be slower. `report` decides the state of the DAG run. No task depends on the sweeps'
files: they may be edited while a sweep runs.
"""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, TriggerRule, task_group

from steptime.airflow.assets import SWEEPS
from steptime.airflow.failures import record_failure
from steptime.airflow.selecting import SelectOperator
from steptime.airflow.sweep.confirming import ConfirmOperator
from steptime.airflow.sweep.operators import (
    CellOutcomeOperator,
    CheckSweepOperator,
    RunCellOperator,
    approval,
)
from steptime.airflow.sweep.reporting import ReportSweepOperator
from steptime.airflow.sweep.runs import (
    CHECK_TASK,
    CONFIRM_TASK,
    FRESH_RUN_TASK,
    RUN_TASK,
    STOP_RUNS_PARAM,
    StopRuns,
)
from steptime.recipes.sweeps import list_sweeps

_RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=10)}
"""For faults of the infrastructure: a run that failed, and the user's errors, are never retried."""

_WAITING_RETRIES = 100
"""Of the task that waits for a cell's run, for days: a worker or trigger that is lost meanwhile takes one."""


def sweep_dag(dag_id: str, *, sweep: str, cron: str | None = None) -> DAG:
    """Build the DAG that runs a sweep of `config/sweeps`, by default the one named `sweep`.

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
    with DAG(
        dag_id=dag_id,
        dag_display_name=dag_id.replace("_", " ").capitalize(),
        description="Start the runs of a sweep" + (f", by default {sweep}" if cron is None else f": {sweep}"),
        doc_md=_DOCUMENTATION,
        schedule=schedule,
        catchup=False,
        is_paused_upon_creation=None if cron is None else True,
        params={
            "sweep": Param(
                sweep,
                type="string",
                # No enum: Airflow would fail the tasks of a sweep whose file is renamed while it runs.
                examples=sorted({sweep, *list_sweeps()}),
                title="Sweep",
                description="A file of config/sweeps; 'steptime sweep plan' shows what it would run.",
            ),
            STOP_RUNS_PARAM: Param(
                StopRuns.FAILED.value,
                type="string",
                enum=[choice.value for choice in StopRuns],
                title="End the runs when the sweep is",
                description="What somebody does to the sweep, or to a cell of it, that ends what it started.",
            ),
        },
        default_args={**_RETRIES, "on_failure_callback": record_failure},
        tags=["steptime", "sweep"],
    ) as dag:
        checked = CheckSweepOperator(task_id=CHECK_TASK).output
        approve = approval(checked)
        # `approve` may be skipped.
        cells = SelectOperator(
            task_id="cells", returned=checked, field="cells", trigger_rule=TriggerRule.NONE_FAILED
        )
        report = ReportSweepOperator(task_id="report", checked=checked, outlets=[SWEEPS])
        # No setup: behind one, `cells` could not start if `approve` is skipped.
        report.as_teardown(on_failure_fail_dagrun=True)

        # Even if a cell failed: others may have become suspect.
        confirm = ConfirmOperator(task_id=CONFIRM_TASK, checked=checked, trigger_rule=TriggerRule.ALL_DONE)
        approve >> cells
        ran = _run_each(RUN_TASK, cells.output)
        ran >> confirm
        [ran, _run_each(FRESH_RUN_TASK, confirm.output)] >> report
    return dag


def _run_each(run_task: str, cells: Any) -> Any:
    """The tasks that start the run of each cell, wait for it, and look at what became of it."""
    group, _, run_id = run_task.partition(".")

    @task_group(group_id=group)
    def run_cell(cell: Any) -> None:
        run = RunCellOperator(task_id=run_id, cell=cell, weight_rule="absolute", retries=_WAITING_RETRIES)
        run >> CellOutcomeOperator(task_id="outcome", cell=cell, started_in=run_task)

    return run_cell.expand(cell=cells)


_DOCUMENTATION = """Runs a sweep: a file of `config/sweeps` with matrices of runs, exclusions and a budget.

Each cell is a DAG run of its workload's DAG, for which a task waits.

Marking a cell's task, or all of the sweep, as failed ends the runs that were started, and their jobs; the
param *End the runs when the sweep is* changes that. The button *Run of this cell* leads to a cell's run.
"""
