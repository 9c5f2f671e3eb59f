"""`steptime slurm`: run a small, real Slurm on this machine, for trials and tests."""

import time
from pathlib import Path
from typing import Annotated

import typer

from steptime.cli.output import FORMAT_OPTION, Format, show, show_json
from steptime.cli.phases import Phases
from steptime.cli.usage import Commands, complain
from steptime.errors import UserError, one_line
from steptime.mini_slurm import layout as layouts
from steptime.mini_slurm import service
from steptime.service import connection_file
from steptime.settings import home

UP_EXAMPLES = """
[bold]Examples[/bold]

steptime slurm up

STEPTIME_HOME=/tmp/second steptime slurm up

steptime slurm up --plugstack pyxis.conf
"""

DOWN_EXAMPLES = """
[bold]Examples[/bold]

steptime slurm down

steptime slurm down --purge
"""

STATUS_EXAMPLES = """
[bold]Examples[/bold]

steptime slurm status

steptime slurm status --format json
"""


app = typer.Typer()
group = typer.Typer(
    cls=Commands,
    help="Run a small, real Slurm on this machine: 8 nodes with 8 stand-in GPUs each, accounting, ssh.",
    no_args_is_help=True,
)
app.add_typer(group, name="slurm")


@group.command(epilog=UP_EXAMPLES)
def up(
    *,
    ssh_host: Annotated[
        str | None,
        typer.Option(
            help="Address of this machine that sshd listens on, for logins from other machines.",
            show_default="that of last time, at first 127.0.0.1",
        ),
    ] = None,
    plugstack: Annotated[
        Path | None,
        typer.Option(
            help="A file used as Slurm's plugstack.conf, for SPANK plugins such as pyxis; or /dev/null.",
            show_default="that of the last start, at first none",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Start a small, real Slurm on this machine (the mini Slurm), and wait until every node can be used.

    Daemons that already run are kept. It runs as you, from Debian's packages; the command names those that
    are missing. All its state is below STEPTIME_HOME; its sshd listens on 127.0.0.1 unless --ssh-host names
    another address. It keeps running when the terminal closes.
    """
    started = time.monotonic()
    with Phases() as phases:
        layout, ran_already = service.up(
            home(),
            phases.report,
            ssh_host=ssh_host,
            plugstack=None if plugstack is None else _read(plugstack),
        )
    connection_file.keep(layouts.login_connection(layout))
    how = "runs already" if ran_already else f"is ready after {time.monotonic() - started:.0f} s"
    now = service.status(home())
    typer.echo(f"Slurm {how}\nlog in:     {now.ssh}\nSLURM_CONF: {now.slurm_conf}")


@group.command(epilog=DOWN_EXAMPLES)
def down(
    *,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete its folder: accounting, logs and keys.")
    ] = False,
) -> None:
    """Cancel the mini Slurm's jobs, stop it, and verify that none of its processes is left.

    The accounting is kept: the next 'steptime slurm up' knows the earlier jobs.
    """
    with Phases() as phases:
        connection_file.forget(layouts.CONNECTION)
        stopped = service.down(home(), phases.report, purge=purge)
    typer.echo("Slurm is stopped" if stopped else "Slurm was not running")


@group.command(epilog=STATUS_EXAMPLES)
def status(*, output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE) -> None:
    """Show the state of the mini Slurm's daemons, nodes and jobs, and how to log in.

    The exit code is 0 if it is healthy, else 2.
    """
    now = service.status(home())
    rows = [
        {"daemon": name, "state": "running" if lives else "stopped", "port": now.ports.get(name)}
        for name, lives in now.daemons.items()
    ]
    if output_format is Format.JSON:
        show_json(now.model_dump(mode="json"))
    elif output_format is Format.CSV:
        show(rows, output_format, called="daemons", columns=["daemon", "state", "port"])
    elif not now.running:
        typer.echo(now.problem)
    else:
        show(rows, output_format, called="daemons")
        typer.echo(f"nodes:      {_counts(now.nodes)}\njobs:       {_counts(now.jobs)}")
        typer.echo(f"log in:     {now.ssh}\nSLURM_CONF: {now.slurm_conf}")
        if now.problem:
            complain(now.problem)
    if not now.healthy:
        raise typer.Exit(2)


def _counts(by_state: dict[str, int]) -> str:
    return ", ".join(f"{count} {state.lower()}" for state, count in sorted(by_state.items())) or "none"


def _read(plugstack: Path) -> str:
    try:
        return plugstack.read_text(encoding="utf-8")
    except ValueError:
        raise UserError(f"--plugstack '{one_line(plugstack)}' is not text: name a plugstack.conf.") from None
