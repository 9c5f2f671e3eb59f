"""The commands of `steptime`, each with its module, which is imported only if the command is called.

This is the command line's one border for imports: the module of a command imports all that it uses at its
top. So `steptime --help` imports no database library, and no command waits for the libraries of another one.
"""

import copy
import importlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import typer.main
from typer.core import TyperCommand

from steptime.cli.usage import Commands


class Entry(NamedTuple):
    """Where a command is defined."""

    module: str
    """Module of `steptime.cli` with a Typer application `app` that has the command."""
    summary: str
    """What `steptime --help` says: the first paragraph of the command's own help."""


COMMANDS = {
    "recipes": Entry(
        "recipes", "List every recipe: sizes, dtypes, GPU types and counts, parallelism and batch sizes."
    ),
    "plan": Entry(
        "plan",
        "Show the runs that `steptime run` would start, and what they cost at most. Nothing is submitted.",
    ),
    "run": Entry("run", "Start the planned runs through Airflow."),
    "sweep": Entry("sweeps", "Plan and start many runs as one: a file of config/sweeps."),
    "trial": Entry("trials", "Find which of several settings is fastest: a file of config/trials."),
    "results": Entry(
        "results", "Show the results of all valid runs: step time, throughput, MFU, checkpoint times."
    ),
    "incidents": Entry(
        "incidents",
        "List the incidents: cells (configurations) that got slower or faster together, with cause and "
        "state.",
    ),
    "report": Entry(
        "report",
        "Write the pages of results as one HTML file to send: what got slower, scaling, trends and runs.",
    ),
    "archive": Entry(
        "archive",
        "Write results to one file: runs with their steps, records and accepted baselines, logs and config.",
    ),
    "parse": Entry(
        "logs", "Read training logs and show one row per run: its step time, or why there is none."
    ),
    "metrics": Entry(
        "metrics",
        "Compute tokens per second, MFU and days to a trillion tokens of a recipe at one step time.",
    ),
    "cluster": Entry("clusters", "Add a cluster, and check that it can be used."),
    "slurm": Entry(
        "slurm",
        "Run a small, real Slurm on this machine: 8 nodes with 8 stand-in GPUs each, accounting, ssh.",
    ),
    "demo": Entry(
        "demo", "Start Airflow, train a tiny Llama 3.1 on the CPU at 1 and 2 ranks, and show the results."
    ),
    "up": Entry(
        "service",
        "Start Airflow on this machine, wait until it is ready, and print its address, user and password.",
    ),
    "down": Entry("service", "Stop Airflow and every process that it started, and verify that none is left."),
    "status": Entry(
        "service",
        "Show Airflow's address, the health of its components, running DAG runs, and budgets of GPU-hours.",
    ),
    "open": Entry(
        "service",
        "Open the page 'Step times' of this machine's Airflow in a browser, and print its address.",
    ),
}
"""All commands, in the order of `steptime --help`."""


class LazyCommands(Commands):
    """The group of all commands: it imports a command's module when the command is looked up."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("dict[str, Any]", _Loaded())

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands, in the order in which the help lists them."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help from the summaries above, without importing any command."""
        listing = copy.copy(self)
        listing.commands = {name: TyperCommand(name, help=entry.summary) for name, entry in COMMANDS.items()}
        super(LazyCommands, listing).format_help(ctx, formatter)


class _Loaded(Mapping[str, Any]):
    """The commands by name; looking one up imports its module."""

    def __getitem__(self, name: str) -> Any:
        module = importlib.import_module(f"steptime.cli.{COMMANDS[name].module}")
        return typer.main.get_group(module.app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)
