"""`steptime results nodes`: which node or link of a node sweep is slow, with the pairs as a heat map."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steptime.cli.output import FORMAT_OPTION, Format, show, show_json
from steptime.cli.selecting import require_results
from steptime.judging.node_pairs import describe_node_pairs
from steptime.pages.answers import drain_command
from steptime.store.run_queries import Store

EXAMPLES = """
[bold]Examples[/bold]

steptime results nodes nodes

steptime results nodes nodes --format csv > pairs.csv
"""

_STYLES = ((20.0, "white on red"), (5.0, "black on yellow"))
"""Least percent by which a pair is slower, and the style in which it is then shown."""


def show_node_pairs(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep with 'nodes', of config/sweeps.")],
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
) -> None:
    """Show the newest node sweep: the slow nodes and links, and how much slower than usual each pair is."""
    store = Store()
    require_results(store, "compare")
    node_pairs = describe_node_pairs(store, sweep)
    if output_format is Format.JSON:
        show_json({"nodes": node_pairs.model_dump(mode="json") | {"findings": node_pairs.findings}})
    elif output_format is Format.CSV:
        rows = [
            pair.model_dump(exclude={"nodes"}) | dict(zip(("node", "other"), pair.nodes, strict=True))
            for pair in node_pairs.pairs
        ]
        show(rows, output_format, called="pairs")
    else:
        slower = {frozenset(pair.nodes): pair.slower_percent for pair in node_pairs.pairs}
        table = Table("slower, %", *node_pairs.nodes, box=None)
        for node in node_pairs.nodes:
            table.add_row(node, *(_cell(slower.get(frozenset((node, other)))) for other in node_pairs.nodes))
        Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000).print(table)
        for sentence in node_pairs.findings:
            typer.echo(sentence)
        for node, sentence in node_pairs.slow_nodes.items():
            if command := drain_command(node_pairs.cluster, node, sentence):
                typer.echo(f"To drain it, as an administrator: {command}")


def _cell(percent: float | None) -> Text:
    if percent is None:
        return Text("")
    style = next((style for limit, style in _STYLES if percent >= limit), "")
    return Text(f"{percent:+.0f}", style, justify="right")
