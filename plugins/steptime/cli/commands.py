"""Every command of `steptime`, each in a module of this folder that is imported when the command is run."""

import importlib
from typing import Any, NamedTuple

from typer.core import TyperCommand
from typer.main import get_group

from steptime.cli.usage import Commands


class Listed(NamedTuple):
    """A command as a list shows it."""

    module: str
    """Of this folder; its Typer `app` has the command."""
    summary: str
    """The first paragraph of the command's help."""


LISTED = {
    "plan": Listed(
        "recipes",
        "Show the runs that `steptime run` would start, and what they cost at most. Nothing is submitted.",
    ),
    "metrics": Listed(
        "metrics",
        "Compute tokens per second, MFU and days to a trillion tokens of a recipe at one step time.",
    ),
    "parse": Listed(
        "logs",
        "Read training logs and show their step times, one row a run, failed and short ones with the reason.",
    ),
    "up": Listed(
        "service",
        "Start Airflow on this machine, wait until it is ready, and print address, user and password.",
    ),
    "down": Listed("service", "Stop Airflow with every process it started, and see that none is left."),
    "status": Listed(
        "service",
        "Show where Airflow runs, how its components are, what it runs, and how budgets of GPU-hours stand.",
    ),
    "run": Listed("run", "Start the planned runs through Airflow."),
    "demo": Listed(
        "demo",
        "Start Airflow, train a tiny Llama 3.1 on the CPU at 1 and 2 ranks, and show the results.",
    ),
    "report": Listed(
        "report",
        "Write one HTML file to send: what got slower, how it scales and how each cell came to be.",
    ),
    "clean": Listed(
        "clean",
        "Remove what this machine keeps of jobs long ended: copies of other clusters' logs, notes of local "
        "jobs.",
    ),
    "recipes": Listed(
        "recipes", "List every recipe: sizes, dtypes, GPU types, scales, parallelism and batch sizes."
    ),
    "slurm": Listed(
        "slurm",
        "Run a small, real Slurm on this machine: 8 nodes with 8 stand-in GPUs each, accounting, ssh.",
    ),
    "sweep": Listed("sweeps", "Plan and start many runs as one: a file of config/sweeps."),
    "results": Listed(
        "results", "Show the results of all runs: step time, throughput, MFU, checkpoint times."
    ),
    "archive": Listed(
        "archive",
        "Write results to one file: with steps, checks, records, judgements, logs and config.",
    ),
}


class ImportedWhenRun(Commands):
    """The commands of `LISTED`. Help and completion show them by the table: to import all takes 0.4 s."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (_, summary) in LISTED.items():
            self.add_command(TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Resolve as any group does, to the command that can be run."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else imported(name), rest


def imported(name: str) -> Any:
    """Import a command, with its help and its options, from its module."""
    module = importlib.import_module(f"steptime.cli.{LISTED[name].module}")
    return get_group(module.app).commands[name]
