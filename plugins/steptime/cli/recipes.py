"""`steptime recipes`: what can run."""

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

import typer

from steptime.cli import import_recipes
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, name_replaced_files, show, with_experts
from steptime.cli.usage import Commands
from steptime.errors import UserError
from steptime.recipes import tables
from steptime.recipes.config_files import load_each, raise_together
from steptime.recipes.flops import broken_formulas
from steptime.recipes.gpus import broken_gpu_types
from steptime.recipes.parameters import Parameters
from steptime.recipes.release_diff import release_differences
from steptime.recipes.workloads import load_workload, load_workloads

EXAMPLES = """
[bold]Examples[/bold]

steptime recipes

steptime recipes --workload llama3.1

steptime recipes --published --format csv > configurations.csv

steptime recipes --workload nemotron-h --launch
"""

DIFF_EXAMPLES = """
[bold]Examples[/bold]

steptime recipes diff gpt-oss-26.02 gpt-oss-26.08

steptime recipes diff qwen3-26.02 qwen3-26.08 --format csv > changes.csv
"""

# What people compare rows and runs by; everything else stands in csv and json.
_RECIPE_COLUMNS = (
    *("recipe", "size", "params", "dtype", "gpu_type", "scaling", "gpus", "seq_len", "layers"),
    *("tp", "pp", "cp", "ep", "etp", "dp", "vp", "mbs", "gbs", "ga", "window"),
)


app = typer.Typer()
group = typer.Typer(cls=Commands)
app.add_typer(group, name="recipes")
group.command(name="import", epilog=import_recipes.EXAMPLES)(import_recipes.import_recipes)


@group.callback(invoke_without_command=True, epilog=EXAMPLES)
def recipes(
    context: typer.Context,
    *,
    workload: Annotated[
        str | None,
        typer.Option(help="Only this one: llama3.1-25.04, or llama3.1 for its default.", show_default=False),
    ] = None,
    published: Annotated[
        bool,
        typer.Option("--published", help="Only published rows, as NVIDIA printed them."),
    ] = False,
    launch: Annotated[
        bool,
        typer.Option("--launch", help="Only how runs are launched on GPUs: each setting with its source."),
    ] = False,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """List every recipe: sizes, dtypes, GPU types and counts, parallelism and batch sizes.

    Without --published: what steptime runs, CPU sizes included.

    With --published: the rows as NVIDIA printed them; what NVIDIA ran may differ from them.

    If a file is broken, the others are listed, stderr says what is wrong with it, and the exit code is 1.
    """
    if context.invoked_subcommand:
        return
    if published and launch:
        raise UserError("--published and --launch are separate lists: give one of them.")
    make_rows = tables.launch_rows if launch else tables.published_rows if published else tables.rows
    workloads, broken = load_each([workload], load_workload) if workload else load_workloads()
    rows = [cells for document in workloads for cells in make_rows(document)]
    in_brief = output_format is Format.TABLE and not (published or launch)
    if rows or broken is None:
        columns = with_experts(_RECIPE_COLUMNS, rows) if in_brief else None
        show(
            [_with_params(row) for row in rows] if in_brief else rows,
            output_format,
            called="recipes",
            columns=columns,
            wide=wide,
        )
    name_replaced_files()
    raise_together(broken, broken_gpu_types(), broken_formulas())


@group.command(name="diff", epilog=DIFF_EXAMPLES)
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A workload: gpt-oss-26.02.", show_default=False)],
    new: Annotated[
        str, typer.Argument(metavar="NEW", help="A newer release of it: gpt-oss-26.08.", show_default=False)
    ],
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
) -> None:
    """Show what a release changed: image, parallelism, batch, variables and arguments, by cell.

    A cell is a model on a number of GPUs of a type in a number format. Settings that both releases share are
    left out, and so are CPU sizes. A release that does not have a setting has `-`, in csv and json nothing.
    """
    changes = release_differences(load_workload(old), load_workload(new))
    if output_format is not Format.TABLE:
        show(changes, output_format, called="changes")
        return
    if not changes:
        typer.echo("nothing differs", err=True)
    for (model, cells), settings in groupby(changes, key=itemgetter("model", "cells")):
        typer.echo(f"{model}, {cells}:")
        for change in settings:
            before, after = ("-" if change[name] is None else change[name] for name in ("old", "new"))
            typer.echo(f"  {change['setting']}: {before} → {after}")


def _with_params(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with a column `params`: its parameter counts for people, None if unknown."""
    total, active = row["parameters"], row["active_parameters"]
    return {**row, "params": None if total is None else str(Parameters(total, active))}
