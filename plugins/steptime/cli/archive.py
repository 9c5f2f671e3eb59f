"""`steptime archive`: results with their records, logs and config as one file, and back."""

from pathlib import Path
from typing import Annotated

import typer

from steptime.cli.selecting import RunFilters, require_results, takes_selection
from steptime.cli.usage import Commands
from steptime.errors import UserError, shown

EXAMPLES = """
[bold]Examples[/bold]

steptime archive -o results.tar.zst

steptime archive --workload llama3.1 --cluster mycluster -o llama.tar.zst

STEPTIME_STORE_URL=sqlite:////srv/steptime/old.db steptime archive restore results.tar.zst
"""

RESTORE_EXAMPLES = """
[bold]Examples[/bold]

steptime archive restore results.tar.zst

steptime archive restore results.tar.zst --into /srv/steptime/2026
"""


app = typer.Typer()
group = typer.Typer(cls=Commands)
app.add_typer(group, name="archive")


@group.callback(invoke_without_command=True, epilog=EXAMPLES)
@takes_selection
def archive(
    context: typer.Context,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file, which must not be there yet.", metavar="FILE.tar.zst"),
    ] = None,
    selection: RunFilters,
) -> None:
    """Write results to one file: with steps, checks, records, judgements, logs and config.

    Rejected runs are in it, too; checkpoints and profiles are not. Logs are in it if this machine has them:
    those of its own clusters, and copies of others.
    """
    if context.invoked_subcommand:
        return
    from steptime.results.archive import SUFFIX, write_archive
    from steptime.results.store import Store

    if to is None or not to.name.endswith(SUFFIX) or not to.parent.is_dir():
        named = "" if to is None else f", not '{shown(to)}'"
        raise UserError(f"name the file with -o, as results{SUFFIX} in a folder that is there{named}.")
    store = Store()
    require_results(store, "archive")
    made = write_archive(store, selection.rows(store, include_rejected=True), to)
    without = f"; of {made.runs - made.logs} this machine has no log" if made.runs > made.logs else ""
    typer.echo(f"archived: {_runs(made.runs)}, {to.stat().st_size / 1e3:,.0f} kB in {to}{without}")


@group.command(name="restore", epilog=RESTORE_EXAMPLES)
def restore_archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that 'steptime archive' made.")],
    *,
    into: Annotated[
        Path | None,
        typer.Option(help="New folder for logs and config.", show_default="STEPTIME_HOME/restored/NAME"),
    ] = None,
) -> None:
    """Read an archive into the store: all of its runs that are not there yet, or none if it is damaged.

    A run that is there stays as it is. Logs and config go into a folder of their own, never over those that
    are in use.
    """
    from steptime.judging.judgements import judge_all
    from steptime.results.archive import restore
    from steptime.results.store import Store
    from steptime.settings import home

    store = Store()
    found = restore(store, file, into or home() / "restored" / file.name.partition(".tar.")[0])
    judge_all(store)
    typer.echo(f"restored: {_runs(len(found.new))}; logs and config are in {found.folder}")
    if found.present:
        typer.echo(f"in the store already, and left as it was: {_runs(len(found.present))}")
    if found.different:
        typer.echo(f"the archive has otherwise: {', '.join(found.different)}")


def _runs(number: int) -> str:
    return f"{number:,} run{'' if number == 1 else 's'}"
