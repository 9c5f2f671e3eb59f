"""`steptime demo`: from an empty machine to the first measured results."""

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Annotated

import typer

from steptime.airflow_addresses import RUN_ROUTE
from steptime.cli.following import airflow_client
from steptime.cli.output import WIDE_OPTION
from steptime.cli.phases import Phases
from steptime.cli.run import check, trigger, wait_for_results
from steptime.cli.service import Port, up
from steptime.clusters.base import StagedFiles
from steptime.clusters.config import load_cluster, open_cluster
from steptime.recipes.models import Run
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.stage import python_version, stage

EXAMPLES = """
[bold]Examples[/bold]

steptime demo

STEPTIME_HOME=/scratch/steptime steptime demo --port 9090
"""

_AIRFLOW_STARTS_WITHIN_S = 900
"""The first start on two busy cores takes more than five minutes: packages are installed beside it."""
REQUEST = PlanRequest(
    workload="llama3.1", cluster="local", gpus="1,2", checkpoint=True, max_steps=13, window="3:12"
)
"""What is trained: a tiny model at 1 and 2 ranks, and a checkpoint that is saved and loaded.

The window has ten steps, as the recipe's own window has. Three steps before it suffice, as on the CPU only
the first step is slower than the others.
"""


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def demo(
    *,
    port: Port = None,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Start Airflow, train a tiny Llama 3.1 on the CPU at 1 and 2 ranks, and show the results.

    A checkpoint is saved, and loaded in a second job. The first time, the trainer's packages are installed:
    some 3 GB, for which this machine needs a Python 3.11.
    Airflow keeps running until 'steptime down'. All state is below STEPTIME_HOME.
    """
    planned = plan(REQUEST)
    of = len(planned.all_runs)
    # Before Airflow starts, which takes long enough to miss the message.
    asyncio.run(_require_python(planned.runs[0]))
    staged = _begin_to_stage(planned.runs[0])
    up(port=port, timeout=_AIRFLOW_STARTS_WITHIN_S)
    check(planned)
    with Phases() as phases:
        if not staged.done():
            phases.report("making the trainer's packages ready: the first time, they are installed")
        staged.result()
    started = time.monotonic()
    with airflow_client(None, None) as client:
        dag_run = trigger(client, planned)
        address = f"{client.run_address(dag_run.dag_id, dag_run.dag_run_id)}/plugin/{RUN_ROUTE}"
        rows, ended_well = wait_for_results(client, dag_run, of=of, wide=wide)
    typer.echo("A tiny model on a CPU shows how steptime works; its numbers vary and say nothing about GPUs.")
    valid = sum(row["state"] == "valid" for row in rows)
    mark = "✓" if ended_well and valid == of else "✗"
    typer.echo(f"{mark} {valid} of {of} valid in {time.monotonic() - started:.0f} s · {address}")
    if mark == "✗":
        raise typer.Exit(2)


def _begin_to_stage(run: Run) -> Future[StagedFiles]:
    """Begin to stage for the run while Airflow starts, so that the DAG run's task `stage` finds it done.

    Returns at once. Staging runs in a daemon thread: interrupting the demo does not wait for pip.
    """
    staged: Future[StagedFiles] = Future()

    def work() -> None:
        try:
            staged.set_result(asyncio.run(_stage(run)))
        except BaseException as error:  # raised again when the result is asked for
            staged.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return staged


async def _require_python(run: Run) -> None:
    """Raise UserError if the cluster has no Python that the trainer's packages are locked for."""
    config = load_cluster(run.cluster)
    async with open_cluster(config) as cluster:
        await python_version(cluster, config)


async def _stage(run: Run) -> StagedFiles:
    config = load_cluster(run.cluster)
    async with open_cluster(config) as cluster:
        return await stage(cluster, config, run, lambda _: None)
