"""`steptime up`, `down` and `status`: the Airflow of this machine."""

import asyncio
import os
import sys
import time
import webbrowser
from collections.abc import Callable
from typing import Annotated, Any

import typer

from steptime.cli.output import FORMAT_OPTION, Format, show, show_json
from steptime.cli.phases import Phases
from steptime.cli.usage import complain
from steptime.clusters.base import Job
from steptime.clusters.config import load_clusters
from steptime.clusters.local.cluster import LocalCluster
from steptime.clusters.local.config import LocalConfig
from steptime.errors import SystemFailure, UserError
from steptime.recipes.cluster_files import list_clusters
from steptime.service import standalone
from steptime.service.standalone_config import ADMIN, password
from steptime.store.budgets import budget_balances
from steptime.wording import counted

UP_EXAMPLES = """
[bold]Examples[/bold]

steptime up

steptime up --port 9090
"""

DOWN_EXAMPLES = """
[bold]Examples[/bold]

steptime down

steptime down --cancel-jobs
"""

STATUS_EXAMPLES = """
[bold]Examples[/bold]

steptime status

steptime status --format json
"""


OPEN_EXAMPLES = """
[bold]Examples[/bold]

steptime open
"""


Port = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="Port of the UI and API. If it is busy, the next free one is used.",
        show_default="8080",
    ),
]

app = typer.Typer()


@app.command(epilog=UP_EXAMPLES)
def up(
    *,
    port: Port = None,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds to wait until Airflow is ready.")] = 300,
) -> None:
    """Start Airflow on this machine, wait until it is ready, and print its address, user and password.

    All its state is in STEPTIME_HOME. It keeps running when the terminal closes.
    A component that dies is restarted. A second 'up' prints the address again.
    """
    started = time.monotonic()
    with Phases() as phases:
        service, ran_already = standalone.up(phases.report, port=port, timeout_s=timeout)
    how = "runs already" if ran_already else f"is ready after {time.monotonic() - started:.0f} s"
    typer.echo(f"Airflow {how}\naddress:  {service.url}\nuser:     {ADMIN}\npassword: {password()}")
    if ran_already and (kept := standalone.kept_settings()):
        typer.echo(
            f"It was started with another {' and '.join(kept)} than this shell has: 'steptime down' and "
            "'steptime up' start it with this one.",
            err=True,
        )


@app.command(epilog=DOWN_EXAMPLES)
def down(
    *,
    cancel_jobs: Annotated[
        bool, typer.Option("--cancel-jobs", help="Also end the training jobs that run on this machine.")
    ] = False,
) -> None:
    """Stop Airflow and every process that it started, and verify that none is left.

    Training jobs on this machine continue, and the next 'steptime up' finds them again.
    """
    with Phases() as phases:
        stopped = standalone.down(phases.report)
        jobs = asyncio.run(_live_jobs(phases.report, cancel=cancel_jobs))
    typer.echo("Airflow is stopped" if stopped else "Airflow was not running")
    if jobs:
        names = "\n  ".join(job.name for job in jobs)
        count = counted(len(jobs), "training job")
        if cancel_jobs:
            fate = "was ended" if len(jobs) == 1 else "were ended"
        else:
            fate = ("keeps" if len(jobs) == 1 else "keep") + " running, see 'steptime down --cancel-jobs'"
        typer.echo(f"{count} {fate}:\n  {names}")


@app.command(epilog=STATUS_EXAMPLES)
def status(*, output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE) -> None:
    """Show Airflow's address, the health of its components, running DAG runs, and budgets of GPU-hours.

    The exit code is 0 if every component is healthy, else 2.
    """
    now, budgets = standalone.status(), _budgets()
    rows = [
        {"component": name, "health": health, "restarts": now.restarts.get(name.replace("_", "-"))}
        for name, health in now.health.items()
    ]
    if output_format is Format.JSON:
        show_json(now.model_dump(mode="json") | {"budgets": budgets})
    elif output_format is Format.CSV:
        show(rows, output_format, called="components", columns=["component", "health", "restarts"])
    else:
        if now.url:
            typer.echo(f"address:  {now.url}")
        if now.problem:
            typer.echo(now.problem)
        else:
            show(rows, output_format, called="components")
            typer.echo(f"DAGs:     {', '.join(now.dags) or 'none yet'}")
            typer.echo(f"running:  {', '.join(now.running_dag_runs) or 'nothing'}")
            for name, error in now.import_errors.items():
                complain(f"Airflow cannot read {name}: {error}")
        if budgets:
            headings = {f"{what}_gpu_hours": what for what in ("used", "committed", "left")}
            headings["gpu_hours_per_month"] = "per month"
            title = "budgets, GPU-hours"
            show(budgets, output_format, called="budgets", title=title, headings=headings)
    if not now.healthy:
        raise typer.Exit(2)


@app.command(name="open", epilog=OPEN_EXAMPLES)
def open_page() -> None:
    """Open the page 'Step times' of this machine's Airflow in a browser, and print its address."""
    now = standalone.status()
    if now.url is None:
        raise SystemFailure(f"there is no page to open: {now.problem}")
    address = f"{now.url}/plugin/step-times"
    typer.echo(address)
    has_screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if has_screen and not webbrowser.open(address):
        complain("no browser could be started: open the address yourself.")


def _budgets() -> list[dict[str, Any]]:
    """Return the balance of each budget; unreadable ones are reported and left out."""
    balances = []
    for name in list_clusters():
        try:
            balances += budget_balances([name])
        except (UserError, SystemFailure) as error:
            complain(str(error))
    return [
        balance.model_dump(exclude={"asked_gpu_hours"}) | {"left_gpu_hours": balance.left_gpu_hours}
        for balance in balances
    ]


async def _live_jobs(report: Callable[[str], None], *, cancel: bool) -> list[Job]:
    """Return the running and waiting jobs of all local clusters; with `cancel`, end them, too."""
    live: list[Job] = []
    clusters, broken = load_clusters()
    if broken is not None:
        complain(str(broken))
    for config in clusters:
        if not isinstance(config, LocalConfig):
            continue
        async with LocalCluster(config) as cluster:
            jobs = await cluster.live_jobs()
            live += jobs
            if cancel and jobs:
                report("ending the training jobs")
                await asyncio.gather(*(cluster.cancel(job.name) for job in jobs))
    return live
