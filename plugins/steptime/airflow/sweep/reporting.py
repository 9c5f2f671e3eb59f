"""The operator that reports on a sweep: what got slower, and what became of each of its runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowFailException
from pydantic import TypeAdapter

from steptime.airflow import sentences
from steptime.airflow.assets import SWEEPS, extra_of_sweep, finished_sweep
from steptime.airflow.base import airflow_errors, dag_run_of
from steptime.airflow.installation import own_runs
from steptime.airflow.notifications import Event, notify
from steptime.airflow.states import LIVE, state_of_dag_run
from steptime.airflow.sweep.operators import APPROVAL_TASK, REJECTED_BY_KEY, started_run
from steptime.airflow.sweep.runs import CONFIRM_TASK, FRESH_RUN_TASK, RUN_TASK
from steptime.airflow.tables import as_text
from steptime.judging.comparison import compare_dag_run
from steptime.recipes.sweep_planning import Cell, SweepPlan
from steptime.results.charges import withdraw_plans
from steptime.results.store import Store


class ReportSweepOperator(BaseOperator):
    """Prints what got slower and what became of each cell, and fails if one has no valid result.

    The one task that decides the DAG run's state, as `ReportOperator` does.

    :param checked: what `CheckSweepOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("checked",)
    ui_color: str = "#e2f3e4"

    def __init__(self, *, checked: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checked = checked

    def execute(self, context: Context) -> None:
        """Print the sentence of the comparison and the table of the runs."""
        ti = context["ti"]
        if not self.checked:
            raise AirflowFailException("nothing was started: see the log of check_sweep")
        plan = SweepPlan.model_validate(self.checked)
        with airflow_errors():
            withdraw_plans([dag_run_of(context)], {cell.request.cluster for cell in plan.cells})
        if rejected_by := ti.xcom_pull(task_ids=APPROVAL_TASK, key=REJECTED_BY_KEY):
            sentence = f"rejected by {rejected_by}: nothing was started"
            self.log.info("%s", sentence)
            return
        with airflow_errors():
            store = Store()
            rows = [_outcome(store, cell, run_id) for cell, run_id in _ran(ti, plan)]
            compared = compare_dag_run(store, ti.dag_id, ti.run_id)
        missing = [row["cell"] for row in rows if row["run"] != "success"]
        live = sum(row["run"] in LIVE for row in rows)
        sentence = sentences.of_sweep(compared, [row["cell"] for row in rows], missing)
        self.log.info("%s", sentence)
        notify(Event.SWEEP_FINISHED, f"sweep {plan.sweep}: {sentence}", context, self.log.error)
        for remark in compared.remarks:
            self.log.info("%s", remark)
        self.log.info("%s", as_text(rows, title=f"results of {ti.run_id}"))
        if missing:
            raise AirflowFailException(
                f"{len(missing)} of {len(rows)} runs have no valid result: {', '.join(missing)}"
                + (f"; {live} not ended yet: 'steptime sweep cancel {ti.run_id}' ends them" if live else "")
            )
        context["outlet_events"][SWEEPS].add(
            finished_sweep(plan.sweep), extra=extra_of_sweep(plan.sweep, sentence, compared.findings)
        )


def _ran(ti: Any, plan: SweepPlan) -> Iterator[tuple[Cell, str | None]]:
    """The cells of the plan and the fresh ones, each with the id of its DAG run; None if it has none."""
    fresh = TypeAdapter(list[Cell]).validate_python(
        ti.xcom_pull(task_ids=CONFIRM_TASK, key=BaseXCom.XCOM_RETURN_KEY) or []
    )
    for started_in, cells in ((RUN_TASK, plan.cells), (FRESH_RUN_TASK, fresh)):
        for index, cell in enumerate(cells):
            yield cell, started_run(ti, started_in, index)


def _outcome(store: Store, cell: Cell, run_id: str | None) -> dict[str, Any]:
    """The row of a cell in the table, with the numbers of its performance run."""
    stored = [] if run_id is None else own_runs(store, cell.dag_id, run_id)
    measured: dict[str, Any] = next((row for row in stored if row["mode"] == "performance"), {})
    return {
        "cell": cell.label,
        "run": "not started" if run_id is None else state_of_dag_run(cell.dag_id, run_id) or "deleted",
        "step time, s": measured.get("step_time_mean_s"),
        "tokens/s": measured.get("tokens_per_s"),
        "MFU, %": measured.get("mfu_percent"),
        "queued, s": measured.get("queue_wait_s"),
        "DAG run": f"{cell.dag_id} {run_id or ''}",
    }
