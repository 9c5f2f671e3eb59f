"""`steptime demo`: the whole way once, from nothing to results that were measured on this machine."""

import time
from typing import Annotated

import typer

from steptime.airflow.addresses import RUN_ROUTE
from steptime.cli.airflow_client import airflow_client
from steptime.cli.output import WIDE_OPTION
from steptime.cli.run import check, trigger, wait_for_results
from steptime.cli.service import up
from steptime.recipes.planning import PlanRequest, plan

EXAMPLES = """
[bold]Examples[/bold]

steptime demo

STEPTIME_HOME=/scratch/steptime steptime demo --port 9090
"""

REQUEST = PlanRequest(workload="llama3.1", cluster="local", gpus="1,2", checkpoint=True)
"""What is trained: a tiny model at 1 and 2 ranks, and a checkpoint that is saved and loaded."""


def register(app: typer.Typer) -> None:
    """Add `steptime demo`."""
    app.command(epilog=EXAMPLES)(demo)


def demo(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Port of the UI and API; a busy one is passed over.", show_default="8080"
        ),
    ] = None,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Start Airflow, train a tiny Llama 3.1 on the CPU at 1 and 2 ranks, and show the results.

    A checkpoint is saved, and loaded in a second job. The first time, the trainer's packages are installed:
    some 3 GB, for which this machine needs a Python 3.11.
    Airflow goes on until 'steptime down'. All state is below STEPTIME_HOME.
    """
    up(port=port)
    planned, started = plan(REQUEST), time.monotonic()
    of = len(planned.all_runs)
    check(planned)
    with airflow_client(None, None) as client:
        dag_run = trigger(client, planned)
        address = f"{client.run_address(dag_run.dag_id, dag_run.dag_run_id)}/plugin/{RUN_ROUTE}"
        rows, ended_well = wait_for_results(client, dag_run, of=of, wide=wide, terse=True)
    valid = sum(row["state"] == "valid" for row in rows)
    mark = "✓" if ended_well and valid == of else "✗"
    typer.echo(f"{mark} {valid} of {of} valid in {time.monotonic() - started:.0f} s · {address}")
    if mark == "✗":
        raise typer.Exit(2)
