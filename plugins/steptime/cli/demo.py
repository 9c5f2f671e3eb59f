"""`steptime demo`: the whole way once, from nothing to results that were measured on this machine."""

from typing import Annotated

import typer

from steptime.cli.run import run
from steptime.cli.service import up
from steptime.recipes.planning import PlanRequest

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
) -> None:
    """Start Airflow, train a tiny Llama 3.1 on the CPU at 1 and 2 ranks, and show the results.

    A checkpoint is saved, and loaded in a second job. The first time, the trainer's packages are installed:
    some 3 GB, for which this machine needs a Python 3.11.
    Airflow goes on until 'steptime down'. All state is below STEPTIME_HOME.
    """
    up(port=port)
    run(REQUEST, wait=True)
    up()  # prints once more where the results can be seen
