"""How many seconds of CPU a command of `steptime` takes to start: its help, a plan, and a log of 20 lines.

    python benchmarks/cli_start.py [--rounds N] [--json]

Each is a process of its own, in a home of its own: without results, and with a store that a plan asks for its
history. The least of some rounds counts, as other work on the machine only adds. In the same rounds stands
beside it what imports alone the packages that print (typer, rich), or those and the store's (SQLAlchemy).
Exit code 2 if a command takes longer than half a second.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from figures import Figure, add_form, show
from steptime.results.store import Store

GOAL_S = 0.5
PRINTING = "import typer, rich.console"
STORING = f"{PRINTING}, sqlalchemy"
RUN = "from steptime.cli import main; main()"
LOG = "".join(
    f"Training epoch 0, iteration {step}/19 | lr: 3e-05 | global_batch_size: 8 | global_step: {step} | "
    f"reduced_train_loss: 11.03 | train_step_timing in s: 0.2{step:02}\n"
    for step in range(20)
)


def cpu_s(code: str, arguments: Sequence[str], home: Path) -> float:
    """Seconds of CPU of a Python that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=home,
        env={name: value for name, value in os.environ.items() if not name.startswith("STEPTIME_")}
        | {"STEPTIME_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int, empty: Path, used: Path) -> list[Figure]:
    """The figures, of a home without and of one with a store."""
    (empty / "log.out").write_text(LOG)
    (used / "store").mkdir()
    Store(f"sqlite:///{used}/store/steptime.db").count()  # makes it
    commands = {
        "steptime --help": (RUN, ["--help"], empty, PRINTING),
        "steptime plan": (RUN, ["plan", "llama3.1"], empty, PRINTING),
        "steptime plan, with a store": (RUN, ["plan", "llama3.1"], used, STORING),
        "steptime parse of 20 lines": (RUN, ["parse", "log.out"], empty, PRINTING),
    }
    alone = {code: (code, (), empty, "") for code in (PRINTING, STORING)}
    taken: dict[str, list[float]] = {name: [] for name in (*commands, *alone)}
    for _ in range(rounds):
        for name, (code, arguments, home, _) in (commands | alone).items():
            taken[name].append(cpu_s(code, arguments, home))
    return [
        Figure(name, min(taken[name]), "s", beside={beside: min(taken[beside])}, goal=GOAL_S)
        for name, (_, _, _, beside) in commands.items()
    ]


def main() -> int:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="of which the least counts (default: 7)")
    add_form(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as used:
        return show(measure(asked.rounds, Path(empty), Path(used)), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
