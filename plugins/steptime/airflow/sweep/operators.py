"""The operators of a sweep: check and plan it, ask a person, start its runs and wait for them."""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import BaseOperator, BaseOperatorLink, Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk.execution_time.context import NEVER_EXPIRE
from pydantic import TypeAdapter

from steptime.airflow.attempts import StoredAttempt
from steptime.airflow.base import RefusingOperator, as_json, dag_run_of
from steptime.airflow.budgets import commit_plan
from steptime.airflow.dag_runs import is_paused, start_dag_run
from steptime.airflow.links import StartedRunLink, dag_run_address
from steptime.airflow.notifications import Event, notify
from steptime.airflow.states import ENDED, state_of_dag_run
from steptime.airflow.sweep.cells import checked_sweep
from steptime.airflow.sweep.runs import (
    HELD_BY,
    STARTED_RUN_KEY,
    STOP_RUNS_PARAM,
    HeldBy,
    StartedRun,
    StopRuns,
)
from steptime.airflow.sweep.triggers import DagRunTrigger
from steptime.airflow.tables import as_text
from steptime.errors import unknown_value
from steptime.recipes.notation import format_at_most, format_hours
from steptime.recipes.sweep_planning import Cell, SweepPlan, runs_of

if TYPE_CHECKING:
    from steptime.judging.expected_cost import Cost

APPROVAL_TASK = "approve"
_SWEEP_PARAM = "sweep"
REJECTED_BY_KEY = "rejected_by"
"""XCom of the approval: who rejected the sweep."""
_ATTEMPT = "attempt"
_ROWS_SHOWN = 50


class CheckSweepOperator(RefusingOperator):
    """Reads the sweep that the DAG run's params name, plans all of it, and refuses what cannot be run.

    Returns the `SweepPlan` as JSON: the plan that this DAG run keeps, whatever becomes of the sweep's file.
    """

    ui_color: str = "#eef3e2"

    def execute(self, context: Context) -> dict[str, Any]:
        """Check and plan."""
        asked_for = {**context["params"], **(context["dag_run"].conf or {})}
        with self.refusals(context):
            for name in asked_for:
                if name not in (_SWEEP_PARAM, STOP_RUNS_PARAM):
                    raise unknown_value("parameter", name, [_SWEEP_PARAM, STOP_RUNS_PARAM])
            plan = checked_sweep(str(asked_for[_SWEEP_PARAM]))
        cost = _expected(plan)
        rows = list(_rows(plan, cost))
        self.log.info("%s", as_text(rows, title=f"sweep {plan.sweep}: {len(rows)} runs"))
        self.log.info("at most %s GPU-hours", format_hours(plan.gpu_hours_max))
        self.log.info("%s", cost.sentence)
        ti = context["ti"]
        with self.refusals(context):
            # As their own DAG runs will: a cell that begins finds what is committed for it here.
            runs = {f"{cell.dag_id}/{run_id_of(ti, cell, 1)}": runs_of(cell) for cell in plan.cells}
            commit_plan(runs, held_by=dag_run_of(context), info=self.log.info)
        return as_json(plan)


class ApproveSweepOperator(ApprovalOperator):
    """Asks a person before a sweep starts that may cost more than its file allows unasked.

    Skipped if nobody has to be asked. Rejecting skips the rest: nothing is started.

    :param checked: what `CheckSweepOperator` returned. (templated)
    """

    template_fields: Collection[str] = (*ApprovalOperator.template_fields, "checked")

    def __init__(self, *, checked: Any, **kwargs: Any) -> None:
        super().__init__(subject="Start this sweep?", **kwargs)
        self.checked = checked

    def execute(self, context: Context) -> Any:
        """Wait for the answer, in the state `awaiting_input`."""
        plan = SweepPlan.model_validate(self.checked)
        if not plan.needs_approval:
            limit = plan.approval_above_gpu_hours
            why = "the sweep asks for no approval"
            why = why if limit is None else f"approval begins above {format_hours(limit)}"
            raise AirflowSkipException(f"at most {format_hours(plan.gpu_hours_max)} GPU-hours: {why}")
        at_most = format_at_most(sum(cell.jobs for cell in plan.cells), plan.gpu_hours_max)
        cost = _expected(plan)
        self.subject = f"Start sweep {plan.sweep}: {at_most}?"
        self.body = f"{cost.sentence}\n\n{_markdown(list(_rows(plan, cost)))}"
        sentence = f"Start sweep {plan.sweep}? {at_most}; {cost.sentence}"
        notify(Event.APPROVAL_WAITING, sentence, context, self.log.error)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Take over the answer; one that rejects leaves no return value, so it is kept beside it."""
        if self.REJECT in event.get("chosen_options", ()):
            user = event.get("responded_by_user") or {}
            context["ti"].xcom_push(REJECTED_BY_KEY, str(user.get("name")))
        return super().execute_complete(context, event)


class CellOperator(BaseOperator):
    """An operator about one cell, by whose label its mapped tasks are called.

    :param cell: a `Cell` as JSON. (templated)
    """

    template_fields: Sequence[str] = ("cell",)

    def __init__(
        self, *, cell: Any, map_index_template: str | None = "{{ task.cell_label }}", **kwargs: Any
    ) -> None:
        super().__init__(map_index_template=map_index_template, **kwargs)
        self.cell = cell

    @property
    def cell_label(self) -> str:
        """The cell's label; for templates, once the fields are rendered."""
        return Cell.model_validate(self.cell).label


class RunCellOperator(CellOperator):
    """Starts the run of a cell in its family's DAG and waits, deferred, until it has ended in whatever way.

    The run's id follows from the sweep's DAG run, the cell and the attempt, and Airflow refuses an id that it
    has: a retry, wherever its predecessor died, comes to the run that is there. Clearing the task begins a
    new attempt if the run has ended; one that goes on is cleared if the sweep's params ask for that.

    Marking it as failed marks the run, too.

    :param cell: a `Cell` as JSON. (templated)
    :param poll_interval_s: seconds between two looks at the run.
    """

    operator_extra_links: Collection[BaseOperatorLink] = (StartedRunLink(),)
    ui_color: str = "#d9e7f5"

    def __init__(self, *, cell: Any, poll_interval_s: float = 10, **kwargs: Any) -> None:
        super().__init__(cell=cell, **kwargs)
        self.poll_interval_s = poll_interval_s

    def execute(self, context: Context) -> NoReturn:
        """Start the run, or find it, and wait."""
        ti, cell = context["ti"], Cell.model_validate(self.cell)
        if is_paused(ti, cell.dag_id):
            raise AirflowFailException(
                f"the DAG '{cell.dag_id}' is paused, so that its runs would wait for ever: unpause it, and "
                "clear this task"
            )
        run_id = self._run_id(context, cell)
        ti.xcom_push(key=STARTED_RUN_KEY, value=as_json(StartedRun(dag_id=cell.dag_id, run_id=run_id)))
        ti.xcom_push(key=StartedRunLink.address_key, value=dag_run_address(cell.dag_id, run_id))
        note = f"{cell.label}, a cell of {ti.dag_id}, {ti.run_id}"
        started = start_dag_run(cell.dag_id, run_id, _conf(ti, cell), note)
        self.log.info("%s run %s of %s", "started" if started else "found", run_id, cell.dag_id)
        raise TaskDeferred(
            trigger=DagRunTrigger(dag_id=cell.dag_id, run_id=run_id, poll_interval_s=self.poll_interval_s),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> NoReturn:  # noqa: ARG002
        """Fail, to be tried again: if the run had ended, the trigger would have ended the task, too."""
        raise AirflowException(f"Airflow gives no state of the run: {event['error']}")

    def _run_id(self, context: Context, cell: Cell) -> str:
        """The id of the run to start or to find; the attempt is stored before anything is started."""
        ti, store = context["ti"], context["task_state_store"]
        earlier = TypeAdapter(StoredAttempt | None).validate_python(store.get(_ATTEMPT))
        number = 1 if earlier is None else earlier.number
        if earlier is not None and earlier.max_tries != ti.max_tries:
            # Airflow raises max_tries when a task is cleared, and at no other time.
            run_id = run_id_of(ti, cell, number)
            if state_of_dag_run(cell.dag_id, run_id) in ENDED:
                number += 1
            elif context["params"].get(STOP_RUNS_PARAM) == StopRuns.CLEARED:
                self.log.info("the task was cleared: clearing run %s, too, which ends its jobs", run_id)
                start_dag_run(cell.dag_id, run_id, _conf(ti, cell), clear_existing=True)
        attempt = StoredAttempt(number=number, max_tries=ti.max_tries)
        store.set(_ATTEMPT, attempt.model_dump(mode="json"), retention=NEVER_EXPIRE)
        return run_id_of(ti, cell, number)


class CellOutcomeOperator(CellOperator):
    """Succeeds if the run of a cell did.

    :param cell: a `Cell` as JSON. (templated)
    :param started_in: id of the task that started the run.
    """

    ui_color: str = "#d9e7f5"

    def __init__(self, *, cell: Any, started_in: str, **kwargs: Any) -> None:
        super().__init__(cell=cell, **kwargs)
        self.started_in = started_in

    def execute(self, context: Context) -> None:
        """Look at the run."""
        ti, cell = context["ti"], Cell.model_validate(self.cell)
        run_id = started_run(ti, self.started_in, ti.map_index)
        state = None if run_id is None else state_of_dag_run(cell.dag_id, run_id)
        if state != "success":
            raise AirflowFailException(
                f"{cell.label}: run {run_id} of {cell.dag_id} "
                + ("was deleted" if state is None else f"is {state}, see its tasks")
                + "; clear the task before this one to run it again"
            )
        self.log.info("run %s of %s has valid results", run_id, cell.dag_id)


def approval(checked: Any) -> ApproveSweepOperator:
    """Make the task that asks; an unanswered request is over before the next week's sweep."""
    return ApproveSweepOperator(
        task_id=APPROVAL_TASK, checked=checked, response_timeout=timedelta(days=6), retries=0
    )


def run_id_of(ti: Any, cell: Cell, attempt: int) -> str:
    """Return the id of a cell's run; the hash separates cells that share a readable name."""
    whole = f"{ti.dag_id}/{ti.run_id}/{cell.repeat}/{cell.request.model_dump_json()}"
    short = hashlib.sha256(whole.encode()).hexdigest()[:12]
    request = cell.request
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{request.size}-{request.dtype}-{request.gpus}")
    again = "" if attempt == 1 else f"__attempt{attempt}"
    return f"sweep__{readable}__{short}{again}"


def _conf(ti: Any, cell: Cell) -> dict[str, Any]:
    """What the run of a cell is started with: its options, and who has started it."""
    holds = HeldBy(
        dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index, sweep=cell.sweep
    )
    return cell.request.model_dump(mode="json", exclude={"workload"}) | {HELD_BY: as_json(holds)}


def started_run(ti: Any, task_id: str, index: int | None) -> str | None:
    """Return the id of the run that a mapped task has started, or None if it has not."""
    started = ti.xcom_pull(task_ids=task_id, map_indexes=index, key=STARTED_RUN_KEY)
    return None if started is None else StartedRun.model_validate(started).run_id


def _expected(plan: SweepPlan) -> "Cost":
    """What the jobs of a sweep are expected to take, in the order of its cells."""
    from steptime.judging.expected_cost import expected_cost

    return expected_cost(run for cell in plan.cells for run in runs_of(cell))


def _rows(plan: SweepPlan, cost: "Cost") -> Iterator[dict[str, Any]]:
    """The cells of a sweep, each with what its jobs take at most and what they are expected to."""
    each = iter(cost.each)
    for cell in plan.cells:
        yield {
            "cell": cell.label,
            "cluster": cell.request.cluster,
            "jobs": cell.jobs,
            "GPUs": cell.gpus_at_once,
            "GPU-hours ≤": cell.gpu_hours_max,
            "expected": replace(cost, each=tuple(islice(each, cell.jobs))).gpu_hours,
            "DAG": cell.dag_id,
        }


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table in Markdown; only the first ones if there are very many."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    for row in rows[:_ROWS_SHOWN]:
        lines.append([_in_markdown(value) for value in row.values()])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    more = len(rows) - _ROWS_SHOWN
    return table if more <= 0 else f"{table}\n\nand {more} more: `steptime sweep plan` lists them."


def _in_markdown(value: Any) -> str:
    if value is None:
        return "unknown"
    return format_hours(value) if isinstance(value, float) else str(value)
