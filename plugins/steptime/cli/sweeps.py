"""`steptime sweep`: list sweeps; show the plan and cost of one; start it, cancel it, repeat a cell."""

from typing import Annotated, Any

import typer

from steptime import dag_ids
from steptime.cli import dag_runs
from steptime.cli.following import Url, User, Wait
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, name_replaced_files, show
from steptime.cli.plan import check_budgets
from steptime.cli.run import show_results_of
from steptime.cli.usage import Commands
from steptime.judging.expected_cost import expected_cost
from steptime.recipes.config_files import load_each, raise_together
from steptime.recipes.models import Run
from steptime.recipes.sweep_planning import SweepPlan, expand_cell
from steptime.recipes.sweeps import copy_file, list_sweeps, load_sweep
from steptime.staging.checking import checked_sweep, planned_sweep

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

steptime sweep run weekly --wait

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
    typer.echo(f"{dag_runs.total(planned)}. Nothing was submitted.", err=not table)
    typer.echo(expected_cost(_runs(planned)).sentence, err=not table)
    if not sweep.has_cluster:
        typer.echo(
            f"No cluster has {sweep.gpu_type}: to start it, describe one in config/clusters.", err=not table
        )
        return
    check_budgets(_runs(planned), err=not table)


@group.command(epilog=RUN_EXAMPLES)
def run(name: Name, *, wait: Wait = False, url: Url = None, user: User = None) -> None:
    """Start a sweep through Airflow, and print the address of its DAG run.

    It is planned here first: a sweep that cannot be run starts nothing. With --wait the exit code is 0 if the
    sweep succeeded, and 2 if it failed.
    """
    ended = dag_runs.start(checked_sweep(name), dag_ids.SWEEP, "sweep", wait=wait, url=url, user=user)
    if ended is not None:
        rows = show_results_of(ended)
        if not rows or ended.state != "success":
            raise typer.Exit(2)


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
    dag_runs.approve(run_id, "sweep", yes=yes, url=url, user=user)


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
    dag_runs.cancel(run_id, "sweep", dry_run=dry_run, url=url, user=user)


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
    dag_runs.again(run_id, cell, "sweep", dry_run=dry_run, url=url, user=user)


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
