"""The DAG that starts the runs of a sweep.

    check_sweep ─▶ approve ─▶ CLUSTER_N_gpus  cells ─▶ run [per cell]   for each cluster and number of slots
    report

`approve` is skipped below the sweep's own limit. Each `run` starts the DAG of a workload family for one cell
and holds N slots of the pool `gpus_CLUSTER` until that run has ended. `report` decides the DAG run's state.
"""

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param, TaskGroup, TriggerRule

from steptime.airflow.pools import pool_name
from steptime.airflow.selecting import SelectOperator
from steptime.airflow.sweep_cells import all_groups
from steptime.airflow.sweep_operators import (
    CELLS_TASK,
    RUN_TASK,
    CheckSweepOperator,
    ReportSweepOperator,
    StartRunOperator,
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
            with TaskGroup(group.group_id):
                # `approve` may be skipped.
                cells = SelectOperator(
                    task_id=CELLS_TASK,
                    returned=checked,
                    field=group.group_id,
                    trigger_rule=TriggerRule.NONE_FAILED,
                )
                run = StartRunOperator.partial(
                    task_id=RUN_TASK,
                    pool=pool_name(group.cluster),
                    pool_slots=group.slots,
                    # The largest first: small ones always find room, and would keep them waiting.
                    priority_weight=group.slots,
                    weight_rule="absolute",
                ).expand(cell=cells.output)
            approve >> cells
            run >> report
        if not groups:
            approve >> report
    return dag


_DOCUMENTATION = """Runs a sweep: a file of `config/sweeps` with matrices of runs, exclusions and a budget.

Each cell is a DAG run of its workload's DAG. A task waits for it and holds as many slots of the pool
`gpus_<cluster>` as the cell has GPUs; `steptime up` makes these pools, elsewhere `steptime sweep pools` does.

Marking a task here as failed stops the waiting, not the run that it has started: its button *Run of this
cell* leads there.
"""
