"""`steptime up`, `down` and `status`: the Airflow of this machine."""

import time
from typing import Annotated

import typer
from rich.console import Console

from steptime.cli.output import Format, show


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
    app.command()(up)
    app.command()(down)
    app.command()(status)


def up(
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the UI and API; a busy one is passed over. [default: 8080]"
        ),
    ] = None,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds until a start counts as failed.")] = 300,
) -> None:
    """Start Airflow on this machine and wait until it is ready; print address, user and password.

    All its state is below STEPTIME_HOME. It goes on when the terminal closes, and starts a component again
    that dies. Called again, it says where Airflow runs.

    Examples:

        steptime up
        steptime up --port 9090
    """
    from steptime.airflow import standalone
    from steptime.airflow.standalone_config import ADMIN, password

    started = time.monotonic()
    with _Phases() as phases:
        service, ran_already = standalone.up(phases.report, port=port, timeout_s=timeout)
    how = "runs already" if ran_already else f"is ready after {time.monotonic() - started:.0f} s"
    typer.echo(f"Airflow {how}\naddress:  {service.url}\nuser:     {ADMIN}\npassword: {password()}")


def down() -> None:
    """Stop Airflow with every process it started, and see that none is left.

    Training jobs on this machine go on, and the next `steptime up` finds them again.
    """
    from steptime.airflow import standalone

    with _Phases() as phases:
        stopped = standalone.down(phases.report)
    typer.echo("Airflow is stopped" if stopped else "Airflow was not running")


def status(
    output_format: Annotated[
        Format, typer.Option("--format", help="table for people, csv or json for programs.")
    ] = (Format.TABLE),
) -> None:
    """Say where Airflow runs, how its components are, and what it is running. Exit code 0 healthy, else 2."""
    from steptime.airflow import standalone

    now = standalone.status()
    rows = [
        {"component": name, "health": health, "restarts": now.restarts.get(name.replace("_", "-"))}
        for name, health in now.health.items()
    ]
    if output_format is Format.JSON:
        typer.echo(now.model_dump_json(indent=2))
    elif output_format is Format.CSV:
        show(rows, output_format, columns=["component", "health", "restarts"])
    else:
        if now.url:
            typer.echo(f"address:  {now.url}")
        if now.problem:
            typer.echo(now.problem)
        else:
            show(rows, output_format)
            typer.echo(f"DAGs:     {', '.join(now.dags) or 'none yet'}")
            typer.echo(f"running:  {', '.join(now.running_dag_runs) or 'nothing'}")
    if not now.healthy:
        raise typer.Exit(2)


class _Phases:
    """Tells on stderr what is being done: a spinner with the seconds in a terminal, else a line a phase."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._started = time.monotonic()
        self._spinner = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> "_Phases":
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def report(self, phase: str) -> None:
        """Say that `phase` has begun."""
        line = f"{time.monotonic() - self._started:4.0f} s  {phase}"
        if self._spinner is not None:
            self._console.print(line, style="dim", highlight=False)
            self._spinner.update(phase)
        else:
            self._console.print(line, highlight=False, soft_wrap=True)
