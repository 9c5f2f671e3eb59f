"""The operator that reports on a sweep: what got slower, and the result of each cell."""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator, Context

from steptime.airflow import sentences
from steptime.airflow.assets import extra_of_sweep, finished_sweep
from steptime.airflow.base import airflow_errors, dag_run_of
from steptime.airflow.notifications import Event, notify
from steptime.airflow.sentences import as_text
from steptime.airflow.sweep.cells import rows_by_cell
from steptime.airflow.sweep.operators import APPROVAL_TASK, REJECTED_BY_KEY
from steptime.judging.comparison import compare_dag_run
from steptime.judging.series import Series
from steptime.recipes.sweep_planning import Cell, SweepPlan, runs_of
from steptime.results.charges import withdraw_plans
from steptime.results.store import Store

_VALID, _NONE = "valid", "none"


class ReportSweepOperator(BaseOperator):
    """Prints what got slower and the result of each cell, and fails if a cell has no valid one.

    This task alone decides the DAG run's state, as `ReportOperator` does.

    :param checked: what `CheckSweepOperator` returned. (templated)
    :param confirmed: what `ConfirmOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("checked", "confirmed")
    ui_color: str = "#e2f3e4"

    def __init__(self, *, checked: Any, confirmed: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checked = checked
        self.confirmed = confirmed

    def execute(self, context: Context) -> None:
        """Print the sentence of the comparison and the table of the cells."""
        ti = context["ti"]
        if not self.checked:
            raise AirflowFailException("nothing was started: see the log of check_sweep")
        plan = SweepPlan.model_validate(self.checked)
        with airflow_errors():
            withdraw_plans([dag_run_of(context)], {cell.request.cluster for cell in plan.cells})
        if rejected_by := ti.xcom_pull(task_ids=APPROVAL_TASK, key=REJECTED_BY_KEY):
            self.log.info("rejected by %s: nothing was started", rejected_by)
            return
        with airflow_errors():
            store = Store()
            found = rows_by_cell(store, ti.dag_id, ti.run_id)
            planned = [Series.of_run(run) for cell in plan.cells for run in runs_of(cell)]
            compared = compare_dag_run(store, ti.dag_id, ti.run_id, planned)
        fresh = [Cell.model_validate(one["sweep_cell"]) for one in (self.confirmed or {}).get("runs", ())]
        rows = [_row(cell, found.get(cell.label, ())) for cell in (*plan.cells, *fresh)]
        missing = [row["cell"] for row in rows if row["result"] != _VALID]
        sentence = sentences.of_sweep(compared, [row["cell"] for row in rows], missing)
        self.log.info("%s", sentence)
        notify(Event.SWEEP_FINISHED, f"sweep {plan.sweep}: {sentence}", context, self.log.error)
        if compared.completeness is not None:
            self.log.info("%s", compared.completeness.line)
        for remark in compared.remarks:
            self.log.info("%s", remark)
        self.log.info("%s", as_text(rows, title=f"results of {ti.run_id}"))
        if missing:
            raise AirflowFailException(
                f"{len(missing)} of {len(rows)} runs have no valid result: {', '.join(missing)}"
            )
        finished = finished_sweep(plan.sweep)
        self.outlets = [finished]
        context["outlet_events"][finished].extra = extra_of_sweep(plan.sweep, sentence, compared.findings)


def _row(cell: Cell, stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of a cell in the table, with the numbers of its performance run.

    A cleared task makes a new attempt: the latest one of each job counts.
    """
    latest = {row["mode"]: row for row in stored}
    modes = [run.mode for run in runs_of(cell)]
    states = [latest[mode]["state"] if mode in latest else _NONE for mode in modes]
    measured: Mapping[str, Any] = latest.get(modes[0], {})
    return {
        "cell": cell.label,
        "result": next((state for state in states if state != _VALID), _VALID),
        "step time, s": measured.get("step_time_mean_s"),
        "tokens/s": measured.get("tokens_per_s"),
        "MFU, %": measured.get("mfu_percent"),
        "queued, s": measured.get("queue_wait_s"),
        "job": measured.get("job_name"),
    }
