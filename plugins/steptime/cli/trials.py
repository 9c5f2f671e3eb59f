"""`steptime trial`: is B faster than A? Plan a trial and start it, show its answer, adopt a variant."""

from typing import Annotated, Any

import typer

from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, name_replaced_files, show, show_json
from steptime.cli.plan import check_budgets
from steptime.cli.sweeps import reserved_runs, total
from steptime.cli.usage import Commands
from steptime.errors import SystemFailure
from steptime.judging.expected_cost import expected_cost
from steptime.recipes.config_files import load_each, raise_together
from steptime.recipes.models import TrialRules
from steptime.recipes.sweep_planning import SweepPlan
from steptime.recipes.sweeps import copy_file
from steptime.recipes.trials import list_trials, load_trial, round_order
from steptime.staging.checking import checked_trial

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

_ROUNDS_SHOWN = 3

Name = Annotated[str, typer.Argument(metavar="NAME", help="A file of config/trials, without .yaml.")]


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
    planned = checked_trial(name)
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
    for number in list(orders)[:_ROUNDS_SHOWN]:
        typer.echo(f"round {number}: {', '.join(orders[number])}", err=err)
    more = f", then {rules.rounds_max - _ROUNDS_SHOWN} more" if rules.rounds_max > _ROUNDS_SHOWN else ""
    typer.echo(f"in an order that follows from the seed {rules.seed}{more}. {_nodes(rules)}", err=err)
    typer.echo(f"{total(planned)}. It ends as soon as the answer is known. Nothing was submitted.", err=err)
    in_round = [cell.planned.runs[0] for cell in planned.cells[: len(rules.variants)]]
    typer.echo(f"a round: {expected_cost(in_round).sentence}", err=err)
    check_budgets(reserved_runs(planned), err=err)


def _rules(planned: SweepPlan) -> TrialRules:
    if planned.trial is None:
        raise SystemFailure(f"{planned.title} is no trial")
    return planned.trial


def _nodes(rules: TrialRules) -> str:
    if rules.same_nodes:
        return "The variants of a round run one after the other on the same nodes."
    return "The variants of a round may run on different nodes, which adds to the noise."


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
