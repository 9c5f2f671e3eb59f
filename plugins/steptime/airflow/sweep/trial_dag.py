"""The DAG of trials: one DAG run finds which of several variants of a run is fastest.

    check_trial ─▶ approve ─▶ stage ─▶ performance_runs ─▶ performance [per round and variant]
    report

A trial is a sweep whose cells are variants × rounds: `performance` is the task group of a workload's DAG. Its
`submit` waits for the rounds before, and is skipped if its variant has left or the trial has ended. The
teardown `report` runs even if somebody fails the DAG run, says the answer, and decides the DAG run's state.
"""

from typing import Any

from airflow.sdk import DAG, Param, TriggerRule, task_group

from steptime.airflow.dag_builder import RETRIES, SelectOperator, train
from steptime.airflow.result_operators import record_failure
from steptime.airflow.sweep.operators import CheckSweepOperator, StageSweepOperator, approval
from steptime.airflow.sweep.trial_operators import ReportTrialOperator, SubmitRoundOperator
from steptime.recipes.trials import list_trials


def trial_dag(dag_id: str) -> DAG:
    """Build the DAG that runs a trial of `config/trials`, chosen in its trigger form."""
    with DAG(
        dag_id=dag_id,
        description="Find which of several variants of a run is fastest",
        doc_md=_DOCUMENTATION,
        schedule=None,
        catchup=False,
        params={
            "trial": Param(
                type="string",
                # No enum: Airflow would fail the tasks of a trial whose file is renamed while it runs.
                examples=list(list_trials()),
                title="Trial",
                description="A file of config/trials; 'steptime trial plan' shows what it would run.",
            ),
        },
        default_args={**RETRIES, "on_failure_callback": record_failure},
        tags=["steptime", "trial"],
    ) as dag:
        checked = CheckSweepOperator(task_id="check_trial", kind="trial").output
        approve = approval(checked)
        # `approve` may be skipped.
        stage = StageSweepOperator(task_id="stage", checked=checked, trigger_rule=TriggerRule.NONE_FAILED)

        @task_group(group_id="performance")
        def performance(run: Any, staged: Any) -> None:
            train(run, staged, None, submit_by=SubmitRoundOperator)

        runs = SelectOperator(task_id="performance_runs", returned=stage.output, field="runs")
        report = ReportTrialOperator(task_id="report", checked=checked)
        # Without a setup: behind one, nothing could start if `approve` is skipped.
        report.as_teardown(on_failure_fail_dagrun=True)
        approve >> stage
        performance.expand_kwargs(runs.output) >> report
    return dag


_DOCUMENTATION = """Runs a trial: a file of `config/trials` with variants of one run, compared in rounds.

In each round every variant that is still in runs once, in random order. A variant leaves when it is shown to
be slower, and the trial ends when the answer is known: `report` says it. Marking the DAG run as failed stops
the trial and ends its jobs.
"""
