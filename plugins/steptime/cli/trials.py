"""`steptime trial`: is B faster than A? Plan a trial and start it, show its answer, adopt a variant."""

from typing import Annotated, Any

import typer

from steptime import dag_ids
from steptime.cli import dag_runs
from steptime.cli.following import Url, User, Wait
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, name_replaced_files, show, show_json
from steptime.cli.plan import check_budgets
from steptime.cli.run import NO_RESULTS
from steptime.cli.usage import Commands, complain
from steptime.errors import SystemFailure
from steptime.judging.expected_cost import expected_cost
from steptime.judging.trial_answers import (
    COLUMNS,
    TrialAnswer,
    known_noise_percent,
    newest_trial,
    read_answer,
)
from steptime.recipes.config_files import load_each, raise_together
from steptime.recipes.models import Run, TrialRules
from steptime.recipes.sweep_planning import SweepPlan
from steptime.recipes.sweeps import add_entry, copy_file, entry_line
from steptime.recipes.trials import list_trials, load_trial, round_order, sweep_entry
from steptime.staging.checking import checked_trial
from steptime.store.run_queries import Store

EXAMPLES = """
[bold]Examples[/bold]

steptime trial list

steptime trial plan example-micro-batch
"""

NEW_EXAMPLES = """
[bold]Examples[/bold]

steptime trial new nccl-ring --from example-micro-batch
"""

PLAN_EXAMPLES = """
[bold]Examples[/bold]

steptime trial plan example-micro-batch

steptime trial plan example-micro-batch --format json
"""

RUN_EXAMPLES = """
[bold]Examples[/bold]

steptime trial run example-micro-batch

steptime trial run example-micro-batch --wait

steptime trial run example-micro-batch --url http://airflow.example:8080 --user ada
"""

SHOW_EXAMPLES = """
[bold]Examples[/bold]

steptime trial show example-micro-batch

steptime trial show example-micro-batch --format csv > variants.csv
"""

APPROVE_EXAMPLES = """
[bold]Examples[/bold]

steptime trial approve steptime_run__2026-11-22T08:00:00.000+00:00
"""

CANCEL_EXAMPLES = """
[bold]Examples[/bold]

steptime trial cancel steptime_run__2026-11-22T08:00:00.000+00:00
"""

AGAIN_EXAMPLES = """
[bold]Examples[/bold]

steptime trial again steptime_run__2026-11-22T08:00:00.000+00:00 "round 2 · ring" --dry-run
"""

ADOPT_EXAMPLES = """
[bold]Examples[/bold]

steptime trial adopt example-micro-batch micro_batch_size=2

steptime trial adopt example-micro-batch micro_batch_size=2 --write weekly
"""

_ROUNDS_SHOWN = 3

Name = Annotated[str, typer.Argument(metavar="NAME", help="A file of config/trials, without .yaml.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The trial's run id, as 'trial run' prints it.")]


app = typer.Typer()
group = typer.Typer(cls=Commands, no_args_is_help=True, epilog=EXAMPLES)
app.add_typer(group, name="trial", help="Find which of several settings is fastest: a file of config/trials.")


@group.command(name="list", epilog=EXAMPLES)
def _list(
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """List all trials."""
    columns = ("name", "description", "cluster", "least_difference_percent", "rounds_max", "gpu_hours_max")
    trials, broken = load_each(list_trials(), load_trial)
    rows = [trial.model_dump(mode="json") for trial in trials]
    show(rows, output_format, called="trials", columns=columns, wide=wide)
    name_replaced_files()
    raise_together(broken)


@group.command(epilog=NEW_EXAMPLES)
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the new trial and its file: nccl-ring.")
    ],
    *,
    example: Annotated[str, typer.Option("--from", metavar="TRIAL", help="The trial to copy.")],
) -> None:
    """Copy a trial into your folder of configuration, and print the path of the new file, for you to edit.

    An existing file is never overwritten.
    """
    typer.echo(copy_file("trial", example, name))


@group.command(epilog=PLAN_EXAMPLES)
def plan(
    name: Name,
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show the variants of a trial, what is left out and why, and what it costs at most.

    Nothing is submitted. The command fails if fewer than two variants can run, or if the plan exceeds the
    budget of the trial or of a cluster.
    """
    planned = checked_trial(name, known_noise=known_noise_percent)
    rules = _rules(planned)
    rows = _variants(planned, rules)
    orders = {number: round_order(rules, number) for number in range(1, rules.rounds_max + 1)}
    if output_format is Format.JSON:
        show_json(
            {
                "trial": rules.trial,
                "gpu_hours_max": planned.gpu_hours_max,
                "least_difference_percent": rules.least_difference_percent,
                "rounds_max": rules.rounds_max,
                "seed": rules.seed,
                "same_nodes": rules.same_nodes,
                "known_noise_percent": rules.known_noise_percent,
                "variants": rows,
                "left_out": [{"variant": name, "cause": why} for name, why in rules.left_out.items()],
                "rounds": [{"round": number, "order": order} for number, order in orders.items()],
            }
        )
    else:
        table = output_format is Format.TABLE
        headings = {"gpu_hours_max": "GPU-hours ≤"}
        columns = ("variant", "cluster", "gpus", "time_limit", "gpu_hours_max") if table else None
        show(rows, output_format, called="variants", columns=columns, headings=headings, wide=wide)
    err = output_format is not Format.TABLE
    for variant, why in rules.left_out.items():
        typer.echo(f"left out: {variant}: {why}", err=err)
    for names in _equal(planned, rules):
        typer.echo(f"equal: {', '.join(names)} are the same run: only noise can differ", err=err)
    for number in list(orders)[:_ROUNDS_SHOWN]:
        typer.echo(f"round {number}: {', '.join(orders[number])}", err=err)
    more = f", then {rules.rounds_max - _ROUNDS_SHOWN} more" if rules.rounds_max > _ROUNDS_SHOWN else ""
    typer.echo(f"in an order that follows from the seed {rules.seed}{more}. {_nodes(rules)}", err=err)
    if rules.known_noise_percent is not None:
        noise = f"{rules.known_noise_percent:.2g} % (standard deviation, by their history)"
        typer.echo(f"Runs of one variant differ by {noise}.", err=err)
    typer.echo(
        f"{dag_runs.total(planned)}. It ends as soon as the answer is known. Nothing was submitted.", err=err
    )
    in_round = [cell.planned.runs[0] for cell in planned.cells[: len(rules.variants)]]
    typer.echo(f"cost of a round: {expected_cost(in_round).sentence}", err=err)
    check_budgets(dag_runs.reserved_runs(planned), err=err)


@group.command(epilog=RUN_EXAMPLES)
def run(name: Name, *, wait: Wait = False, url: Url = None, user: User = None) -> None:
    """Start a trial through Airflow, and print the address of its DAG run.

    It is planned here first: a trial that cannot be run starts nothing. With --wait its answer is printed at
    the end, and the exit code is 0 if its DAG run succeeded, and 2 if it failed.
    """
    planned = checked_trial(name, known_noise=known_noise_percent)
    ended = dag_runs.start(planned, dag_ids.TRIAL, "trial", wait=wait, url=url, user=user)
    if ended is None:
        return
    answer = read_answer(Store(), ended.dag_id, ended.dag_run_id)
    if answer is not None:
        _print_answer(answer)
    elif ended.state == "success":
        complain(NO_RESULTS)
    if answer is None or ended.state != "success":
        raise typer.Exit(2)


@group.command(name="show", epilog=SHOW_EXAMPLES)
def show_answer(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the trial.")],
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show the answer of a trial's newest run: which variant is fastest, by how much, and how sure that is.

    A trial that still runs is shown as far as it is. Intervals are simultaneous: the chance that any
    statement of a trial is wrong is at most 5 %.
    """
    store = Store()
    answer = read_answer(store, *newest_trial(store, name))
    if answer is None:
        raise SystemFailure(f"the metrics store has no plan of the trial {name}")
    _print_answer(answer, output_format, wide=wide)


@group.command(epilog=APPROVE_EXAMPLES)
def approve(
    run_id: RunId,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    user: User = None,
) -> None:
    """Let a trial start that waits for approval, after showing what it costs at most and is expected to.

    Asks for confirmation. The exit code is 1 if the trial does not wait for approval.
    """
    dag_runs.approve(run_id, "trial", yes=yes, url=url, user=user)


@group.command(epilog=CANCEL_EXAMPLES)
def cancel(
    run_id: RunId,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be ended.")] = False,
    url: Url = None,
    user: User = None,
) -> None:
    """End a trial: mark its DAG run as failed; its tasks then cancel their jobs.

    The exit code is 0 if the trial has ended, now or earlier, 1 if there is no such trial, and 2 if it still
    runs after five minutes.
    """
    dag_runs.cancel(run_id, "trial", dry_run=dry_run, url=url, user=user)


@group.command(epilog=AGAIN_EXAMPLES)
def again(
    run_id: RunId,
    cell: Annotated[
        str, typer.Argument(metavar="RUN", help="The run, as the grid names it: round 2 · ring.")
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show which tasks would run again.")] = False,
    url: Url = None,
    user: User = None,
) -> None:
    """Run one variant of one round again, with a new job; the other runs stay as they are.

    The answer is then computed with the new run.
    """
    dag_runs.again(run_id, cell, "trial", dry_run=dry_run, url=url, user=user)


@group.command(epilog=ADOPT_EXAMPLES)
def adopt(
    name: Name,
    variant: Annotated[str, typer.Argument(metavar="VARIANT", help="A variant of the trial.")],
    *,
    write: Annotated[
        str | None,
        typer.Option("--write", metavar="SWEEP", help="Add the line to this sweep of yours."),
    ] = None,
) -> None:
    """Print a variant as the line to add to `runs` of a sweep, or add it to a sweep's file."""
    entry = sweep_entry(load_trial(name), variant)
    if write is None:
        typer.echo(entry_line(entry))
        return
    typer.echo(f"added to {add_entry(write, entry)}:\n{entry_line(entry)}")


def _print_answer(answer: TrialAnswer, output_format: Format = Format.TABLE, *, wide: bool = False) -> None:
    if output_format is Format.JSON:
        show_json(answer.content)
        return
    headings = {column.name: column.title for column in COLUMNS}
    show(answer.rows, output_format, called="variants", headings=headings, wide=wide)
    typer.echo(answer.sentence, err=output_format is not Format.TABLE)


def _rules(planned: SweepPlan) -> TrialRules:
    if planned.trial is None:
        raise SystemFailure(f"{planned.title} is no trial")
    return planned.trial


def _nodes(rules: TrialRules) -> str:
    if rules.same_nodes:
        return "The variants of a round run one after the other on the same nodes."
    return "The variants of a round may run on different nodes, which adds to the noise."


def _equal(planned: SweepPlan, rules: TrialRules) -> list[list[str]]:
    """Return the names of variants that are the same run, each group of them in a list."""
    groups: list[tuple[Run, list[str]]] = []
    for cell in planned.cells[: len(rules.variants)]:
        position, run = cell.planned.runs[0].trial, cell.planned.runs[0].model_copy(update={"trial": None})
        if position is None:
            continue
        known = next((names for other, names in groups if other == run), None)
        if known is None:
            groups.append((run, known := []))
        known.append(position.variant)
    return [sorted(names, key=rules.variants.index) for _, names in groups if len(names) > 1]


def _variants(planned: SweepPlan, rules: TrialRules) -> list[dict[str, Any]]:
    """Return a row for each variant: its name, what a run of it costs at most, and its options."""
    by_variant = {
        position.variant: cell
        for cell in planned.cells[: len(rules.variants)]
        if (position := cell.planned.runs[0].trial) is not None
    }
    return [
        {
            "variant": variant,
            "gpu_hours_max": cell.gpu_hours_max,
            **cell.request.model_dump(mode="json", exclude={"gpus", "repeats"}),
            "gpus": cell.gpus,
        }
        for variant, cell in ((variant, by_variant[variant]) for variant in rules.variants)
    ]
