"""Operators of a sweep: check and plan it, ask a person for approval, stage, and report at its end."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any, Literal

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import BaseOperator, Context
from airflow.sdk.definitions.param import ParamsDict

from steptime.airflow import summaries
from steptime.airflow.assets import extra_of_sweep, finished_sweep
from steptime.airflow.base import RefusingOperator, airflow_errors
from steptime.airflow.budgets import budget_owner, store_plan
from steptime.airflow.notifications import Event, notify, notify_of_incidents
from steptime.airflow.operators import requested_options, stage_for
from steptime.airflow.summaries import as_text
from steptime.airflow.sweep.cells import (
    load_cells,
    load_plan,
    plan_as_xcom,
    rows_by_cell,
    runs_to_store,
    runs_with_staged,
)
from steptime.airflow.versions import AirflowFailException, AirflowSkipException, response_limit
from steptime.airflow.xcom import as_json
from steptime.errors import unknown_value
from steptime.judging.comparison import compare_dag_run
from steptime.judging.expected_cost import Cost, expected_cost
from steptime.judging.series import Series
from steptime.judging.trial_answers import known_noise_percent
from steptime.recipes.notation import format_at_most, format_hours
from steptime.recipes.sweep_planning import Cell, SweepPlan, expand_cell
from steptime.staging.checking import checked_sweep, checked_trial
from steptime.store.budgets import release
from steptime.store.database import wait_for_store
from steptime.store.run_queries import Store

APPROVAL_TASK = "approve"
REJECTED_BY_KEY = "rejected_by"
"""XCom key of the approval: who rejected the sweep."""
_ROWS_SHOWN = 50
_VALID, _NONE = "valid", "none"


class CheckSweepOperator(RefusingOperator):
    """Plans and checks the sweep or trial that the DAG run's params name.

    Stores the plan in the job ledger, which this DAG run keeps even if files of `config/` change, and returns
    its numbers as XCom: see `plan_as_xcom`.

    :param kind: `sweep` or `trial`, which is also the name of the param.
    """

    ui_color: str = "#eef3e2"

    def __init__(self, *, kind: Literal["sweep", "trial"] = "sweep", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind

    def execute(self, context: Context) -> dict[str, Any]:
        """Check and plan it, and reserve the budget of its clusters. Returns the plan as JSON."""
        asked_for = requested_options(context)
        with self.refusals(context):
            for param in asked_for:
                if param != self.kind:
                    raise unknown_value("parameter", param, [self.kind])
            name = str(asked_for.get(self.kind))
            if self.kind == "sweep":
                plan = checked_sweep(name, owner=self.owner)
            else:
                plan = checked_trial(name, owner=self.owner, known_noise=known_noise_percent)
            cost = _expected(plan)
        rows = list(_rows(plan, cost))
        self.log.info("%s", as_text(rows, title=f"{plan.title}: {len(rows)} runs"))
        for variant, why in (plan.trial.left_out if plan.trial else {}).items():
            self.log.info("left out: %s: %s", variant, why)
        self.log.info("at most %s GPU-hours", format_hours(plan.gpu_hours_max))
        self.log.info("%s", cost.sentence)
        with self.refusals(context):
            store_plan(self, context, runs_to_store(plan.cells, reserving=plan.reserving_cells))
        return plan_as_xcom(plan)


class ApproveSweepOperator(ApprovalOperator):
    """Asks a person before a sweep that may cost more than its file allows without approval.

    Skipped if no approval is needed. If the sweep is rejected, nothing is started.

    :param checked: what `CheckSweepOperator` returned. (templated)
    """

    template_fields: Collection[str] = (*ApprovalOperator.template_fields, "checked")

    def __init__(self, *, checked: Any, **kwargs: Any) -> None:
        super().__init__(subject="Start this?", **kwargs)
        self.checked = checked

    def validate_params(self) -> None:
        """Take out the DAG's params, which are no fields of the request.

        Airflow 3.1's provider leaves them in, and refuses the DAG if one has no default.
        """
        self.params = ParamsDict()
        super().validate_params()

    def execute(self, context: Context) -> Any:
        """Ask for approval and wait for the answer, holding no worker slot; notify people of the request."""
        with airflow_errors():
            plan = load_plan(self, context, self.checked)
        if not plan.needs_approval:
            limit = plan.approval_above_gpu_hours
            why = "its file asks for no approval"
            why = why if limit is None else f"approval is needed only above {format_hours(limit)}"
            raise AirflowSkipException(
                f"it takes at most {format_hours(plan.gpu_hours_max)} GPU-hours, and {why}"
            )
        at_most = format_at_most(sum(cell.jobs for cell in plan.cells), plan.gpu_hours_max)
        cost = _expected(plan)
        self.subject = f"Start {plan.title}: {at_most}?"
        self.body = f"{cost.sentence}\n\n{_markdown(list(_rows(plan, cost)))}"
        sentence = f"Start {plan.title}? {at_most}; {cost.sentence}"
        notify(Event.APPROVAL_WAITING, sentence, context, self.log.error)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Process the answer; who rejected the sweep is kept in an XCom of its own."""
        if self.REJECT in event.get("chosen_options", ()):
            user = event.get("responded_by_user") or {}
            context["ti"].xcom_push(REJECTED_BY_KEY, str(user.get("name")))
        return super().execute_complete(context, event)


class StageSweepOperator(BaseOperator):
    """Stages what a sweep's runs need, once for each of its clusters and images.

    :param checked: what `CheckSweepOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("checked",)
    ui_color: str = "#e2eef3"

    def __init__(self, *, checked: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.checked = checked

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage, and return the runs with their staged files as JSON: see `runs_with_staged`."""
        with airflow_errors():
            cells = load_plan(self, context, self.checked).cells
        staged: dict[tuple[str, str | None], Any] = {}
        by_label = {}
        for cell in cells:
            run = expand_cell(cell)[0]
            needs = run.cluster, run.recipe.image
            if needs not in staged:
                staged[needs] = as_json(stage_for(run, self))
            by_label[cell.label] = staged[needs]
        return runs_with_staged(cells, by_label)


def approval(checked: Any) -> ApproveSweepOperator:
    """Create the task that asks for approval; it fails after six days without an answer."""
    limit = response_limit(HITLOperator, timedelta(days=6))
    return ApproveSweepOperator(task_id=APPROVAL_TASK, checked=checked, retries=0, **limit)


def _expected(plan: SweepPlan) -> Cost:
    """Return the expected cost of a sweep's jobs, in the order of its cells."""
    return expected_cost(run for cell in plan.cells for run in expand_cell(cell))


def _rows(plan: SweepPlan, cost: Cost) -> Iterator[dict[str, Any]]:
    """Yield a sweep's cells, each with the maximum and the expected cost of its jobs."""
    costs = iter(cost.each)
    for cell in plan.cells:
        yield {
            "cell": cell.label,
            "cluster": cell.request.cluster,
            "jobs": cell.jobs,
            "GPUs": cell.gpus,
            "GPU-hours ≤": cell.gpu_hours_max,
            "expected": replace(cost, each=tuple(islice(costs, cell.jobs))).gpu_hours,
        }


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Format rows as a Markdown table; only the first ones if there are very many."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    for row in rows[:_ROWS_SHOWN]:
        lines.append([_in_markdown(value) for value in row.values()])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    more = len(rows) - _ROWS_SHOWN
    return table if more <= 0 else f"{table}\n\nand {more} more."


def _in_markdown(value: Any) -> str:
    if value is None:
        return "unknown"
    return format_hours(value) if isinstance(value, float) else str(value)


class ReportSweepOperator(BaseOperator):
    """Prints a sweep's findings and the result of each cell; fails if a cell has no valid result.

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
        """Print one sentence that compares the sweep with its history, and a table of its cells.

        Releases the reserved budget, updates the incidents, notifies people, and updates the sweep's asset.
        """
        ti = context["ti"]
        if not self.checked:
            raise AirflowFailException("nothing was started: see the log of check_sweep")
        with airflow_errors():
            wait_for_store(lambda: release(budget_owner(context)), self.log.warning)
            plan = load_plan(self, context, self.checked)
        if rejected_by := ti.xcom_pull(task_ids=APPROVAL_TASK, key=REJECTED_BY_KEY):
            self.log.info("rejected by %s: nothing was started", rejected_by)
            return
        with airflow_errors():
            planned = [Series.from_run(run) for cell in plan.cells for run in expand_cell(cell)]
            rows_of_cells, compared = wait_for_store(
                lambda: (
                    rows_by_cell(Store(), ti.dag_id, ti.run_id),
                    compare_dag_run(Store(), ti.dag_id, ti.run_id, planned),
                ),
                self.log.warning,
            )
            confirmations = load_cells(self, context, (self.confirmed or {}).get("cells", ()))
        rows = [_row(cell, rows_of_cells.get(cell.label, ())) for cell in (*plan.cells, *confirmations)]
        missing = [row["cell"] for row in rows if row["result"] != _VALID]
        sentence = summaries.summarize_sweep(compared, [row["cell"] for row in rows], missing)
        self.log.info("%s", sentence)
        notify(Event.SWEEP_FINISHED, f"sweep {plan.sweep}: {sentence}", context, self.log.error)
        if compared.completeness is not None:
            self.log.info("%s", compared.completeness.line)
        for remark in compared.remarks:
            self.log.info("%s", remark)
        self.log.info("%s", as_text(rows, title=f"results of {ti.run_id}"))
        with airflow_errors():
            notify_of_incidents(self, context)
        if missing:
            raise AirflowFailException(
                f"{len(missing)} of {len(rows)} runs have no valid result: {', '.join(missing)}"
            )
        finished = finished_sweep(plan.sweep)
        self.outlets = [finished]
        context["outlet_events"][finished].extra = extra_of_sweep(plan.sweep, sentence, compared.findings)


def _row(cell: Cell, stored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a cell's row of the table, with the numbers of its performance run.

    If a run was repeated because a task was cleared, its latest job counts.
    """
    latest = {row["mode"]: row for row in stored}
    modes = [run.mode for run in expand_cell(cell)]
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
