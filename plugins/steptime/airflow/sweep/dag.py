"""The DAG of sweeps: one DAG run trains all cells of a sweep.

    check_sweep ─▶ approve ─▶ stage ─┬▶ performance_runs ─▶ performance [per cell] ─┬▶ confirm ─▶ confirmation
                                     └▶ checkpoint_pairs ─▶ checkpoint [per pair] ──┘
    report

A cell is one planned run with its options. `performance` and `checkpoint` are the task groups of a workload's
DAG (see `dag_builder`); `confirmation` contains both again, for the cells that `confirm` runs once more.
`approve` is skipped if the sweep costs at most the limit in its file. The teardown `report` runs even if
somebody fails the DAG run, and decides its state. Tasks after `check_sweep` do not depend on the sweep's
file, so it may be edited while a sweep runs.
"""

from typing import Any

from airflow.sdk import DAG, Param, TaskGroup, TriggerRule, task_group

from steptime.airflow.dag_builder import RETRIES, SelectOperator, train
from steptime.airflow.result_operators import record_failure
from steptime.airflow.sweep.confirming import ConfirmOperator
from steptime.airflow.sweep.operators import (
    CheckSweepOperator,
    ReportSweepOperator,
    StageSweepOperator,
    approval,
)
from steptime.airflow.versions import cron_timetable
from steptime.recipes.sweeps import startable_sweeps


def sweep_dag(dag_id: str, *, sweep: str, cron: str | None = None) -> DAG:
    """Build a DAG that runs one sweep of `config/sweeps`, chosen in its trigger form.

    Args:
        dag_id: the DAG's id.
        sweep: name of the sweep that the trigger form shows at first, and that the schedule runs.
        cron: when it starts by itself, in UTC. Such a DAG is created paused, and does not catch up on missed
            runs.
    """
    schedule = None
    if cron is not None:
        schedule = cron_timetable(cron)
    with DAG(
        dag_id=dag_id,
        description="Train the cells of a sweep"
        + (f", by default {sweep}" if cron is None else f": {sweep}"),
        doc_md=_DOCUMENTATION,
        schedule=schedule,
        catchup=False,
        is_paused_upon_creation=None if cron is None else True,
        params={
            "sweep": Param(
                sweep,
                type="string",
                # No enum: Airflow would fail the tasks of a sweep whose file is renamed while it runs.
                examples=sorted({sweep, *startable_sweeps()}),
                title="Sweep",
                description="A file of config/sweeps; 'steptime sweep plan' shows what it would run.",
            ),
        },
        default_args={**RETRIES, "on_failure_callback": record_failure},
        tags=["steptime", "sweep"],
    ) as dag:
        checked = CheckSweepOperator(task_id="check_sweep").output
        approve = approval(checked)
        # `approve` may be skipped.
        stage = StageSweepOperator(task_id="stage", checked=checked, trigger_rule=TriggerRule.NONE_FAILED)
        ran = _train_each(stage.output)
        # Even if a cell failed: others may have become suspect.
        confirm = ConfirmOperator(
            task_id="confirm", checked=checked, staged=stage.output, trigger_rule=TriggerRule.ALL_DONE
        )
        with TaskGroup("confirmation"):
            ran_again = _train_each(confirm.output)
        report = ReportSweepOperator(task_id="report", checked=checked, confirmed=confirm.output)
        # Without a setup: behind one, nothing could start if `approve` is skipped.
        report.as_teardown(on_failure_fail_dagrun=True)
        approve >> stage
        ran >> confirm
        [*ran, *ran_again] >> report
    return dag


def _train_each(planned: Any) -> list[Any]:
    """Create the tasks that train each cell; `planned` is an XCom of `runs_with_staged`."""

    @task_group(group_id="performance")
    def performance(run: Any, staged: Any) -> None:
        train(run, staged, None)

    @task_group(group_id="checkpoint")
    def checkpoint(save: Any, load: Any, staged: Any) -> None:
        with TaskGroup("save"):
            saving = train(save, staged, None)
        with TaskGroup("load"):
            train(load, staged, None, saving=saving)

    runs = SelectOperator(task_id="performance_runs", returned=planned, field="runs")
    pairs = SelectOperator(task_id="checkpoint_pairs", returned=planned, field="checkpoint_pairs")
    return [performance.expand_kwargs(runs.output), checkpoint.expand_kwargs(pairs.output)]


_DOCUMENTATION = """Runs a sweep: a file of `config/sweeps` with matrices of runs, exclusions and a budget.

Each cell is a mapped instance of the tasks that a workload's DAG has. Marking the DAG run as failed stops the
sweep and ends its jobs; marking `wait` of one cell as failed stops that cell.
"""
