"""`steptime results metrics`: the newest numbers of each cell for Prometheus, as text or a file."""

import time
from pathlib import Path
from typing import Annotated

import typer

from steptime.cli.selecting import require_results

EXAMPLES = """
[bold]Examples[/bold]

steptime results metrics

steptime results metrics -o /var/lib/node_exporter/textfile/steptime.prom
"""


def export_metrics(
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A file, made or replaced: *.prom in the folder of node_exporter's textfile collector.",
            metavar="FILE.prom",
        ),
    ] = None,
) -> None:
    """Print the newest numbers, verdicts and incidents of all cells as OpenMetrics text, for Prometheus.

    The same is at /steptime/api/metrics of Airflow's API server, for users who have logged in.
    """
    from steptime.files import write_whole
    from steptime.reporting.openmetrics import openmetrics
    from steptime.results.store import Store

    store = Store()
    require_results(store, "export")
    text = openmetrics(store, time.time())
    if to is None:
        typer.echo(text, nl=False)
    else:
        write_whole(to, text)
