"""`steptime clean`: remove what this machine keeps of jobs that ended long ago."""

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli.ages import age_s
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, show
from steptime.errors import UserError, shown

if TYPE_CHECKING:
    from steptime.clusters.pruning import Old

EXAMPLES = """
[bold]Examples[/bold]

steptime clean --dry-run

steptime clean --older-than 12w
"""

_AT_LEAST_S = 86_400
"""Airflow may still wait for a job that ended only just now."""


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def clean(
    *,
    older_than: Annotated[
        str, typer.Option(help="How long ago they ended: 1d or more, as 30d or 12w.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Remove what this machine keeps of jobs long ended: copies of other clusters' logs, notes of local jobs.

    Notes go once the job's folder is gone: delete old folders below experiments/ first. Whatever a live job
    uses stays, and so do results, experiments with their logs, and what is staged.
    """
    from steptime.clusters.config import load_clusters
    from steptime.clusters.pruning import Old, prune
    from steptime.recipes.config_problems import refuse

    age = age_s(older_than)
    if age is None:
        raise UserError(f"--older-than '{shown(older_than)}' is no age: write 30d or 12w.")
    if age < _AT_LEAST_S:
        raise UserError(f"--older-than '{shown(older_than)}' is too short: write 1d or more.")
    found = prune(before=time.time() - age, dry_run=dry_run)
    show(
        [old._asdict() | {"last_used": _day(old)} for old in found],
        output_format,
        called="removed",
        columns=Old._fields,
        wide=wide,
    )
    done = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(found)} {done}, {sum(old.size_bytes for old in found) / 1e6:,.1f} MB", err=True)
    refuse(load_clusters()[1])  # whose jobs' notes nobody could look for


def _day(old: "Old") -> str:
    return f"{datetime.fromtimestamp(old.last_used).astimezone():%Y-%m-%d}"
