"""`steptime cluster`: check a cluster's file against the cluster itself, and write one."""

import asyncio
from typing import Annotated

import typer

from steptime.cli import new_cluster
from steptime.cli.output import FORMAT_OPTION, Format, show
from steptime.cli.usage import Commands

CHECK_EXAMPLES = """
[bold]Examples[/bold]

steptime cluster check selene

steptime cluster check selene --workload llama3.1

steptime cluster check selene --format json
"""

app = typer.Typer()
group = typer.Typer(cls=Commands, help="Add a cluster, and check that it can be used.", no_args_is_help=True)
app.add_typer(group, name="cluster")
group.command(name="add", epilog=new_cluster.EXAMPLES)(new_cluster.add)


@group.command(epilog=CHECK_EXAMPLES)
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A file of config/clusters.")],
    *,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Check only what this one needs, its files of the Hugging Face hub, too.",
            show_default="what the recipes for the cluster's type of GPU need",
        ),
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
) -> None:
    """Check that a cluster can be used: login, scheduler, GPUs, work_dir, Python, containers, images.

    One line a check: ✓, ✗ with what to do, or – with why it does not apply. Nothing is submitted. The exit
    code is 2 if a check fails.
    """
    from steptime.clusters.checks import Finding, Outcome
    from steptime.clusters.config import load_cluster
    from steptime.service.airflow_connections import airflow_connection
    from steptime.staging.cluster_check import check_cluster, runs_to_check

    config = load_cluster(name)
    runs = runs_to_check(config, workload)

    def report(found: Finding) -> None:
        if output_format is Format.TABLE:
            typer.echo(str(found))

    findings = asyncio.run(check_cluster(config, airflow_connection, runs, report))
    if output_format is not Format.TABLE:
        show([found.model_dump(mode="json") for found in findings], output_format, called="checks")
    if any(found.outcome is Outcome.FAILED for found in findings):
        raise typer.Exit(2)
