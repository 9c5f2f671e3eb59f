"""DAG runs of sweeps and trials, through Airflow's REST API: start, approve, cancel, and repeat a cell."""

import re
from collections.abc import Sequence
from typing import Literal

import typer

from steptime import dag_ids
from steptime.cli.following import DAG_PATIENCE_S, FIRST_TASK, airflow_client, explain_failure, follow
from steptime.cli.plan import check_budgets
from steptime.errors import SystemFailure, UserError, one_line, unknown_value
from steptime.recipes.models import Mode, Run
from steptime.recipes.notation import format_at_most, format_hours
from steptime.recipes.sweep_planning import SweepPlan, expand_cell
from steptime.service.rest import AirflowClient, DagRun, Question, TaskInstance
from steptime.waiting import poll_until
from steptime.wording import counted

_REPORT_TASK = "report"
_APPROVAL_TASK = "approve"
_APPROVE = "Approve"
"""The option of Airflow's request for approval that lets the DAG run go on."""
_ASKS_WITHIN_S = 60.0
"""How long a DAG run that was just started may take to ask: it is planned again first."""
Kind = Literal["sweep", "trial"]
"""What is run; also the tag of the DAGs that run it, and the name of their param."""
_MARKED_EVERY_S, _MARKS = 20.0, 15
"""How often a DAG run that shall end is marked as failed, and how many times at most.

A task that begins to wait while Airflow writes the mark escapes it, and its job would train on.
"""


def start(
    planned: SweepPlan, dag_id: str, kind: Kind, *, wait: bool, url: str | None, user: str | None
) -> DagRun | None:
    """Start a planned sweep or trial through Airflow, and print the address of its DAG run.

    With `wait` it is followed to its end, failed tasks are named, and the ended DAG run is returned. Raises
    UserError if a cluster's budget is too small for it, and SystemFailure on Ctrl-C while following.
    """
    check_budgets(reserved_runs(planned), err=True)
    with airflow_client(url, user) as client:
        started = client.trigger(dag_id, {kind: planned.sweep}, patience_s=DAG_PATIENCE_S)
        address = client.run_address(started.dag_id, started.dag_run_id)
        typer.echo(f"{total(planned)}\nrun id:  {started.dag_run_id}\naddress: {address}", err=wait)
        if planned.needs_approval:
            typer.echo(
                f"It waits until somebody approves it: 'steptime {kind} approve {started.dag_run_id}', or "
                f"{address}/required_actions",
                err=wait,
            )
        if not wait:
            return None
        ended = follow(client, started, of=sum(cell.jobs for cell in planned.cells))
        if ended.state == "failed":
            explain_failure(client, ended)
        return ended


def approve(run_id: str, kind: Kind, *, yes: bool, url: str | None, user: str | None) -> None:
    """Show what a waiting sweep or trial costs, ask for confirmation unless `yes`, and let it start.

    Raises UserError if it does not wait for approval.
    """
    with airflow_client(url, user) as client:
        dag_run = _find(client, run_id, kind)
        question = poll_until(lambda: _approval(client, dag_run), every_s=1, timeout_s=_ASKS_WITHIN_S)
        if question is None or question.response_received:
            why = "has not asked for it" if question is None else "was answered already"
            raise UserError(f"{run_id} does not wait for approval: it {why}, and is {dag_run.state}.")
        cost, _, _ = (question.body or "").partition("\n")
        typer.echo(f"{question.subject}\n{cost}")
        if not yes:
            typer.confirm("Approve?", abort=True, err=True)
        client.answer(dag_run, _APPROVAL_TASK, _APPROVE)
        typer.echo(f"approved: see {client.run_address(dag_run.dag_id, dag_run.dag_run_id)}")


def _approval(client: AirflowClient, dag_run: DagRun) -> Question | None:
    """Return the DAG run's request for approval; None if it may still come.

    Raises UserError if it does not come: the DAG run has ended, or needs no approval.
    """
    question = client.question(dag_run, _APPROVAL_TASK)
    if question is not None:
        return question
    tasks = client.task_instances(dag_run.dag_id, dag_run.dag_run_id)
    task = next((task for task in tasks if task.task_id == _APPROVAL_TASK), None)
    if task is not None and task.state is not None and not task.is_under_way:
        raise UserError(
            f"{dag_run.dag_run_id} does not wait for approval: its task 'approve' is {task.state}."
        )
    return None


def cancel(run_id: str, kind: Kind, *, dry_run: bool, url: str | None, user: str | None) -> None:
    """End a sweep or trial, and wait until it has ended; with `dry_run`, only say so.

    Raises UserError if there is none, and SystemFailure if it still runs after five minutes.
    """
    with airflow_client(url, user) as client:
        dag_run = _find(client, run_id, kind)
        if dag_run.has_ended:
            typer.echo(f"{run_id} is not running: its state is {dag_run.state}")
        elif dry_run:
            typer.echo(f"would end {run_id} of {dag_run.dag_id}, which is {dag_run.state}")
        else:
            _end(client, dag_run)
            typer.echo(f"ended {run_id} of {dag_run.dag_id}")


def again(run_id: str, cell: str, kind: Kind, *, dry_run: bool, url: str | None, user: str | None) -> None:
    """Clear the tasks of one cell of a sweep or trial and its report; with `dry_run`, only name them.

    In a trial the later runs that were skipped are cleared, too: with another result they may be needed.
    Raises UserError if there is no such cell, or if one of its tasks is under way.
    """
    with airflow_client(url, user) as client:
        dag_run = _find(client, run_id, kind)
        tasks = client.task_instances(dag_run.dag_id, dag_run.dag_run_id)
        chosen = _tasks_of_cell(tasks, cell)
        if busy := next((task for task in chosen if task.is_under_way), None):
            raise UserError(
                f"{busy.label} is {busy.state}: wait for its end, or mark it as failed in Airflow first."
            )
        names = ", ".join(task.task_id for task in chosen)
        later = _skipped_after(chosen[0], tasks) if kind == "trial" else []
        if not dry_run:
            report = [task for task in tasks if task.task_id == _REPORT_TASK]
            client.clear(dag_run, [*chosen, *later, *report])
        skipped = len({task.map_index for task in later})
        then = (
            f", and then {counted(skipped, 'skipped run')} after it if the answer is open again"
            if later
            else ""
        )
        typer.echo(f"{'would run' if dry_run else 'runs'} {cell} of {run_id} again: {names}{then}")


def _tasks_of_cell(tasks: Sequence[TaskInstance], cell: str) -> list[TaskInstance]:
    """Return the cell's tasks in all mapped groups, also those that have no label yet.

    Raises UserError if no task has the cell's label.
    """
    names = {cell, *(f"{cell}·{mode.replace('_', ' ')}" for mode in Mode)}
    mapped = [task for task in tasks if task.map_index >= 0]
    groups = {(_group_name(task), task.map_index) for task in mapped if task.rendered_map_index in names}
    if not groups:
        labels = {  # in the DAG run's order; a task that has not begun has its number for a label
            task.rendered_map_index: None
            for task in sorted(mapped, key=lambda task: task.map_index)
            if task.rendered_map_index and task.rendered_map_index != str(task.map_index)
        }
        raise unknown_value("cell", cell, labels)
    return [task for task in mapped if (_group_name(task), task.map_index) in groups]


def _skipped_after(first: TaskInstance, tasks: Sequence[TaskInstance]) -> list[TaskInstance]:
    """Return the tasks of those later runs of a trial whose first task was skipped."""
    group = _group_name(first)
    later = [task for task in tasks if task.map_index > first.map_index and _group_name(task) == group]
    skipped = {
        task.map_index
        for task in later
        if task.state == "skipped" and task.task_id.rpartition(".")[2] == FIRST_TASK
    }
    return [task for task in later if task.map_index in skipped]


def _group_name(task: TaskInstance) -> str:
    """Return the name of a task's mapped group; a checkpoint's group contains two inner groups."""
    return re.sub(r"(\.(save|load))?\.[^.]+$", "", task.task_id)


def _find(client: AirflowClient, run_id: str, kind: Kind) -> DagRun:
    """Return the DAG run of a sweep or trial. Raises UserError if there is none."""
    dag_run = client.find_dag_run(run_id, tag=kind)
    if dag_run is None:
        running = [run for run in client.running_dag_runs() if run.dag_id.startswith(dag_ids.dag_id(kind))]
        known = ", ".join(run.dag_run_id for run in running) or f"no {kind} runs now"
        raise UserError(
            f"Airflow at {client.url} has no {kind} with the run id '{one_line(run_id)}': 'steptime {kind} "
            f"run' prints it, and its page in Airflow shows it. Under way: {known}."
        )
    return dag_run


def _end(client: AirflowClient, dag_run: DagRun) -> None:
    """Mark a DAG run as failed until it has ended. Raises SystemFailure after five minutes."""
    for _ in range(_MARKS):
        client.mark_failed(dag_run)
        if poll_until(
            lambda: client.dag_run(dag_run.dag_id, dag_run.dag_run_id).has_ended,
            every_s=1,
            timeout_s=_MARKED_EVERY_S,
        ):
            return
    raise SystemFailure(
        f"{_MARKS * _MARKED_EVERY_S:.0f} s after it was first marked as failed, {dag_run.dag_run_id} has not "
        f"ended: see {client.run_address(dag_run.dag_id, dag_run.dag_run_id)}"
    )


def reserved_runs(planned: SweepPlan) -> list[Run]:
    """Return the runs whose GPU-hours the plan reserves in its clusters' budgets."""
    return [run for cell in planned.reserving_cells for run in expand_cell(cell)]


def total(planned: SweepPlan) -> str:
    """Return what the plan costs at most as a sentence, without its full stop."""
    jobs = sum(cell.jobs for cell in planned.cells)
    summary = f"{planned.title}: {format_at_most(jobs, planned.gpu_hours_max)}"
    if planned.needs_approval and planned.approval_above_gpu_hours is not None:
        summary += f", for which somebody is asked (above {format_hours(planned.approval_above_gpu_hours)})"
    return summary
