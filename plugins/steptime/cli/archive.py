"""`steptime archive`: results with their records, logs and config as one file."""

from pathlib import Path
from typing import Annotated

import typer

from steptime.cli.selecting import RunFilters, require_results, takes_selection
from steptime.errors import UserError
from steptime.measure.archiving import SUFFIX, check_name, write_archive
from steptime.store.run_queries import Store
from steptime.wording import counted

EXAMPLES = """
[bold]Examples[/bold]

steptime archive -o results.tar.zst

steptime archive --workload llama3.1 --cluster mycluster -o llama.tar.zst
"""

app = typer.Typer()


@app.command(epilog=EXAMPLES)
@takes_selection
def archive(
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write; it must not exist yet.", metavar="FILE.tar.zst"
        ),
    ] = None,
    selection: RunFilters,
) -> None:
    """Write results to one file: runs with their steps, records and accepted baselines, logs and config.

    Rejected runs are in it, too; checkpoints and profiles are not. Logs are in it if they are on this
    machine: those of jobs that ran here, and copies of logs from other clusters. 'steptime results import'
    reads it into any store.
    """
    if to is None:
        raise UserError(f"no file is named: give one with -o, like results{SUFFIX} in an existing folder.")
    check_name(to, "-o")
    store = Store()
    require_results(store, "archive")
    archived = write_archive(store, selection.rows(store, include_rejected=True), to)
    without = (
        f"; of {archived.runs - archived.logs} this machine has no log"
        if archived.runs > archived.logs
        else ""
    )
    runs = counted(archived.runs, "run")
    typer.echo(f"archived: {runs}, {to.stat().st_size / 1e3:,.0f} kB in {to}{without}")
