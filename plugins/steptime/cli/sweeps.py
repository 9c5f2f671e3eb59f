"""`steptime sweep`: list sweeps; show the plan and cost of one; start it, cancel it, repeat a cell."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from steptime import dag_ids
from steptime.cli.following import DAG_PATIENCE_S, Url, User, airflow_client
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, name_replaced_files, show
from steptime.cli.plan import check_budgets
from steptime.cli.usage import Commands
from steptime.errors import SystemFailure, UserError, one_line, unknown_value
from steptime.judging.expected_cost import expected_cost
from steptime.recipes.config_files import load_each, raise_together
from steptime.recipes.models import Mode, Run
from steptime.recipes.notation import format_at_most, format_hours
from steptime.recipes.sweep_planning import SweepPlan, expand_cell
from steptime.recipes.sweeps import copy_file, list_sweeps, load_sweep
from steptime.service.rest import AirflowClient, DagRun, Question, TaskInstance
from steptime.staging.checking import checked_sweep, planned_sweep
from steptime.waiting import poll_until

_REPORT_TASK = "report"
_APPROVAL_TASK = "approve"
_APPROVE = "Approve"
"""The option of Airflow's request for approval that lets the DAG run go on."""
_ASKS_WITHIN_S = 60.0
"""How long a sweep that was just started may take to ask: it is planned again first."""
Kind = Literal["sweep", "trial"]
"""What is run; also the tag of the DAGs that run it, and the name of their param."""
_ENDED_WITHIN_S = 300.0

EXAMPLES = """
[bold]Examples[/bold]

steptime sweep list

steptime sweep plan weekly
"""

PLAN_EXAMPLES = """
[bold]Examples[/bold]

steptime sweep plan weekly

steptime sweep plan weekly --format csv > weekly.csv
"""

RUN_EXAMPLES = """
[bold]Examples[/bold]

steptime sweep run weekly

steptime sweep run weekly --url http://airflow.example:8080 --user ada
"""

CANCEL_EXAMPLES = """
[bold]Examples[/bold]

steptime sweep cancel steptime_run__2026-11-22T08:00:00.000+00:00 --dry-run

steptime sweep cancel scheduled__2026-11-23T06:00:00+00:00
"""

NEW_EXAMPLES = """
[bold]Examples[/bold]

steptime sweep new weekly --from example-weekly
"""

APPROVE_EXAMPLES = """
[bold]Examples[/bold]

steptime sweep approve steptime_run__2026-11-22T08:00:00.000+00:00

steptime sweep approve scheduled__2026-11-23T06:00:00+00:00 --yes
"""

AGAIN_EXAMPLES = """
[bold]Examples[/bold]

steptime sweep again scheduled__2026-11-23T06:00:00+00:00 llama3.1·8b·fp8·64

steptime sweep again scheduled__2026-11-23T06:00:00+00:00 llama3.1·8b·fp8·64 --dry-run
"""

RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The sweep's run id, as 'sweep run' prints it.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A file of config/sweeps, without .yaml.")]


app = typer.Typer()
group = typer.Typer(cls=Commands, no_args_is_help=True, epilog=EXAMPLES)
app.add_typer(group, name="sweep", help="Plan and start many runs as one: a file of config/sweeps.")


@group.command(name="list", epilog=EXAMPLES)
def _list(
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """List all sweeps."""
    columns = (
        "name",
        "description",
        "gpu_type",
        "cluster",
        "repeats",
        "gpu_hours_max",
        "approval_above_gpu_hours",
    )
    sweeps, broken = load_each(list_sweeps(), load_sweep)
    rows = [sweep.model_dump(mode="json") | {"cluster": sweep.runs_on} for sweep in sweeps]
    show(rows, output_format, called="sweeps", columns=columns, wide=wide)
    name_replaced_files()
    raise_together(broken)


@group.command(epilog=NEW_EXAMPLES)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new sweep and its file: weekly.")],
    *,
    example: Annotated[str, typer.Option("--from", metavar="SWEEP", help="The sweep to copy.")],
) -> None:
    """Copy a sweep into your folder of configuration, and print the path of the new file, for you to edit.

    An existing file is never overwritten.
    """
    typer.echo(copy_file("sweep", example, name))


@group.command(epilog=PLAN_EXAMPLES)
def plan(
    name: Name,
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show the runs of a sweep and what they cost at most. Nothing is submitted.

    The command fails if a run is impossible, or if the plan exceeds the budget of the sweep or of a cluster.
    """
    planned, sweep = planned_sweep(name), load_sweep(name)
    table = output_format is Format.TABLE
    headings = {"cell": "run", "gpu_hours_max": "GPU-hours ≤"}
    columns = ("cell", "cluster", "jobs", "gpus", "time_limit", "gpu_hours_max") if table else None
    show(_rows(planned), output_format, called="cells", columns=columns, headings=headings, wide=wide)
    typer.echo(f"{total(planned)}. Nothing was submitted.", err=not table)
    typer.echo(expected_cost(_runs(planned)).sentence, err=not table)
    if not sweep.has_cluster:
        typer.echo(
            f"No cluster has {sweep.gpu_type}: to start it, describe one in config/clusters.", err=not table
        )
        return
    check_budgets(_runs(planned), err=not table)


@group.command(epilog=RUN_EXAMPLES)
def run(name: Name, *, url: Url = None, user: User = None) -> None:
    """Start a sweep through Airflow, and print the address of its DAG run.

    It is planned here first: a sweep that cannot be run starts nothing.
    """
    start(checked_sweep(name), dag_ids.SWEEP, "sweep", url, user)


def start(planned: SweepPlan, dag_id: str, kind: Kind, url: str | None, user: str | None) -> None:
    """Start a planned sweep or trial through Airflow, and print the address of its DAG run.

    Raises UserError if a cluster's budget is too small for it.
    """
    check_budgets(reserved_runs(planned), err=True)
    with airflow_client(url, user) as client:
        started = client.trigger(dag_id, {kind: planned.sweep}, patience_s=DAG_PATIENCE_S)
        address = client.run_address(started.dag_id, started.dag_run_id)
    typer.echo(f"{total(planned)}\nrun id:  {started.dag_run_id}\naddress: {address}")
    if planned.needs_approval:
        typer.echo(
            f"It waits until somebody approves it: 'steptime {kind} approve {started.dag_run_id}', or "
            f"{address}/required_actions"
        )


@group.command(epilog=APPROVE_EXAMPLES)
def approve(
    run_id: RunId,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    user: User = None,
) -> None:
    """Let a sweep start that waits for approval, after showing what it costs at most and is expected to.

    Asks for confirmation. To reject it, answer in Airflow, or use 'steptime sweep cancel'. The exit code is 1
    if the sweep does not wait for approval.
    """
    approve_dag_run(run_id, "sweep", yes=yes, url=url, user=user)


def approve_dag_run(run_id: str, kind: Kind, *, yes: bool, url: str | None, user: str | None) -> None:
    """Show what a waiting sweep or trial costs, ask for confirmation unless `yes`, and let it start.

    Raises UserError if it does not wait for approval.
    """
    with airflow_client(url, user) as client:
        sweep = _dag_run(client, run_id, kind)
        question = poll_until(lambda: _approval(client, sweep), every_s=1, timeout_s=_ASKS_WITHIN_S)
        if question is None or question.response_received:
            why = "has not asked for it" if question is None else "was answered already"
            raise UserError(f"{run_id} does not wait for approval: it {why}, and is {sweep.state}.")
        cost, _, _ = (question.body or "").partition("\n")
        typer.echo(f"{question.subject}\n{cost}")
        if not yes:
            typer.confirm("Approve?", abort=True, err=True)
        client.answer(sweep, _APPROVAL_TASK, _APPROVE)
        typer.echo(f"approved: see {client.run_address(sweep.dag_id, sweep.dag_run_id)}")


def _approval(client: AirflowClient, sweep: DagRun) -> Question | None:
    """Return the sweep's request for approval; None if it may still come.

    Raises UserError if it does not come: the sweep has ended, or needs no approval.
    """
    question = client.question(sweep, _APPROVAL_TASK)
    if question is not None:
        return question
    tasks = client.task_instances(sweep.dag_id, sweep.dag_run_id)
    task = next((task for task in tasks if task.task_id == _APPROVAL_TASK), None)
    if task is not None and task.state is not None and not task.is_under_way:
        raise UserError(f"{sweep.dag_run_id} does not wait for approval: its task 'approve' is {task.state}.")
    return None


@group.command(epilog=CANCEL_EXAMPLES)
def cancel(
    run_id: RunId,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be ended.")] = False,
    url: Url = None,
    user: User = None,
) -> None:
    """End a sweep: mark its DAG run as failed; its tasks then cancel their jobs.

    The exit code is 0 if the sweep has ended, now or earlier, 1 if there is no such sweep, and 2 if it still
    runs after five minutes.
    """
    end_dag_run(run_id, "sweep", dry_run=dry_run, url=url, user=user)


def end_dag_run(run_id: str, kind: Kind, *, dry_run: bool, url: str | None, user: str | None) -> None:
    """End a sweep or trial, and wait until it has ended; with `dry_run`, only say so.

    Raises UserError if there is none, and SystemFailure if it still runs after five minutes.
    """
    with airflow_client(url, user) as client:
        sweep = _dag_run(client, run_id, kind)
        if sweep.has_ended:
            typer.echo(f"{run_id} is not running: its state is {sweep.state}")
        elif dry_run:
            typer.echo(f"would end {run_id} of {sweep.dag_id}, which is {sweep.state}")
        else:
            client.mark_failed(sweep)
            _wait_for_end(client, sweep)
            typer.echo(f"ended {run_id} of {sweep.dag_id}")


@group.command(epilog=AGAIN_EXAMPLES)
def again(
    run_id: RunId,
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="The cell, as the report and the grid name it.")
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which tasks would run again.")] = False,
    url: Url = None,
    user: User = None,
) -> None:
    """Run one cell of a sweep again, with a new job; the other cells stay as they are.

    Clears the tasks of the cell (both save and load of a checkpoint) and the task `report`, and nothing
    else. The state of the DAG run is then decided anew.
    """
    run_again(run_id, cell, "sweep", dry_run=dry_run, url=url, user=user)


def run_again(
    run_id: str, cell: str, kind: Kind, *, dry_run: bool, url: str | None, user: str | None
) -> None:
    """Clear the tasks of one cell of a sweep or trial and its report; with `dry_run`, only name them.

    Raises UserError if there is no such cell, or if one of its tasks is under way.
    """
    with airflow_client(url, user) as client:
        sweep = _dag_run(client, run_id, kind)
        tasks = client.task_instances(sweep.dag_id, sweep.dag_run_id)
        chosen = _tasks_of_cell(tasks, cell)
        if busy := next((task for task in chosen if task.is_under_way), None):
            raise UserError(
                f"{busy.label} is {busy.state}: wait for its end, or mark it as failed in Airflow first."
            )
        names = ", ".join(task.task_id for task in chosen)
        if not dry_run:
            client.clear(sweep, [*chosen, *(task for task in tasks if task.task_id == _REPORT_TASK)])
        typer.echo(f"{'would run' if dry_run else 'runs'} {cell} of {run_id} again: {names}")


def _tasks_of_cell(tasks: Sequence[TaskInstance], cell: str) -> list[TaskInstance]:
    """Return the cell's tasks in all mapped groups, also those that have no label yet.

    Raises UserError if no task has the cell's label.
    """
    names = {cell, *(f"{cell}·{mode.replace('_', ' ')}" for mode in Mode)}
    mapped = [task for task in tasks if task.map_index >= 0]
    groups = {(_group_name(task), task.map_index) for task in mapped if task.rendered_map_index in names}
    if not groups:
        raise unknown_value("cell", cell, sorted({str(task.rendered_map_index) for task in mapped}))
    return [task for task in mapped if (_group_name(task), task.map_index) in groups]


def _group_name(task: TaskInstance) -> str:
    """Return the name of a task's mapped group; a checkpoint's group contains two inner groups."""
    return re.sub(r"(\.(save|load))?\.[^.]+$", "", task.task_id)


def _dag_run(client: AirflowClient, run_id: str, kind: Kind) -> DagRun:
    """Return the DAG run of a sweep or trial. Raises UserError if there is none."""
    dag_run = client.find_dag_run(run_id, tag=kind)
    if dag_run is None:
        raise UserError(
            f"Airflow at {client.url} has no {kind} with the run id '{one_line(run_id)}': 'steptime {kind} "
            "run' prints it, and its page in Airflow shows it."
        )
    return dag_run


def _wait_for_end(client: AirflowClient, sweep: DagRun) -> None:
    """Wait until a sweep's DAG run has ended. Raises SystemFailure after five minutes."""
    if not poll_until(
        lambda: client.dag_run(sweep.dag_id, sweep.dag_run_id).has_ended, every_s=1, timeout_s=_ENDED_WITHIN_S
    ):
        raise SystemFailure(
            f"{_ENDED_WITHIN_S:.0f} s after it was marked as failed, {sweep.dag_run_id} has not ended: "
            f"see {client.run_address(sweep.dag_id, sweep.dag_run_id)}"
        )


def reserved_runs(planned: SweepPlan) -> list[Run]:
    """Return the runs whose GPU-hours the plan reserves in its clusters' budgets."""
    return [run for cell in planned.reserving_cells for run in expand_cell(cell)]


def _runs(planned: SweepPlan) -> list[Run]:
    return [run for cell in planned.cells for run in expand_cell(cell)]


def _rows(planned: SweepPlan) -> list[dict[str, Any]]:
    return [
        {
            "cell": cell.label,
            "entry": cell.entry,
            "repeat": cell.repeat,
            "jobs": cell.jobs,
            "gpu_hours_max": cell.gpu_hours_max,
            **cell.request.model_dump(mode="json", exclude={"gpus", "repeats"}),
            "gpus": cell.gpus,
        }
        for cell in planned.cells
    ]


def total(planned: SweepPlan) -> str:
    """Return what the plan costs at most as a sentence, without its full stop."""
    jobs = sum(cell.jobs for cell in planned.cells)
    summary = f"{planned.title}: {format_at_most(jobs, planned.gpu_hours_max)}"
    if planned.needs_approval and planned.approval_above_gpu_hours is not None:
        summary += f", for which somebody is asked (above {format_hours(planned.approval_above_gpu_hours)})"
    return summary
