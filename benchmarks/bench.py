"""The short forms of the benchmarks in one command: is steptime itself slower than it was?

    make bench [ONLY=log_reading] [BEFORE=COMMIT] [ROUNDS=3]

Each figure is a series in a file of its own, `<STEPTIME_HOME>/benchmarks.jsonl`, and is judged as steptime
judges trainings: by a prediction interval over the last runs on this machine. What leaves it is suspected,
and its benchmark is run anew at once, which confirms or dismisses it.

With BEFORE the benchmarks of this working tree run on its own code and on that of a commit, in turns, and
nothing is kept: ratios are of medians, and where the rounds of both overlap, that stands beside. Exit code 3
where a figure is confirmed as slower.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figures import Figure, number
from steptime import settings
from steptime.judging.detection import FRESH_RUNS, Standing, standings

ROOT = Path(__file__).parents[1]
SHORT_FORMS = {
    "log_reading": ("--megabytes", "64"),
    "cli_start": ("--rounds", "5"),
    "dag_import": (),
    "local_cluster": ("--jobs", "200"),
    "store_pages": ("--runs", "4000"),
    "triggerer_waits": ("--waits", "20"),
}
"""Arguments with which each benchmark takes a minute or two; the last one needs Slurm's packages."""
SLOWER_EXIT_CODE = 3
"""As that of `steptime results compare`."""

Figures = Mapping[str, Figure]


def measured(benchmark: str, root: Path) -> Figures:
    """The figures of the short form of a benchmark, of the code below `root`; by name."""
    script = ROOT / "benchmarks" / f"{benchmark}.py"
    done = subprocess.run(
        [sys.executable, script, *SHORT_FORMS[benchmark], "--json"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "plugins")},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 2):  # 2: a goal is missed, which the figure says
        raise SystemExit(f"bench: {benchmark} ended with exit code {done.returncode}; what it said is above")
    figures = map(Figure.of_json, done.stdout.splitlines())
    return {figure.name: figure for figure in figures}


class History:
    """What was measured before, on any machine: a file with a line for each run of a benchmark."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machine = f"{platform.node()}, {os.cpu_count()} cores"

    def add(self, benchmark: str, figures: Figures) -> None:
        """Keep what a run of a benchmark has measured."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        about = {"at": time.time(), "commit": commit(), **self._series(benchmark)}
        line = json.dumps(about | {"figures": [asdict(figure) for figure in figures.values()]})
        with self._path.open("a") as lines:
            lines.write(f"{line}\n")

    def standing(self, benchmark: str, name: str) -> Standing:
        """How a figure stands after its last run."""
        lines = map(json.loads, self._path.read_text().splitlines())
        wanted = self._series(benchmark)
        figures = (
            Figure(**figure)
            for line in lines
            if wanted.items() <= line.items()
            for figure in line["figures"]
            if figure["name"] == name
        )
        return standings([figure.as_time for figure in figures])[-1]

    def _series(self, benchmark: str) -> dict[str, Any]:
        """What may be compared: the same code takes another time elsewhere, and with other arguments."""
        return {
            "machine": self._machine,
            "benchmark": benchmark,
            "arguments": list(SHORT_FORMS[benchmark]),
        }


def commit() -> str:
    """What is measured: the commit, with `+` where files differ from it."""
    return git("describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+").strip()


def git(*arguments: str) -> str:
    """What git prints, of this repository. Exits where it fails, which it says itself."""
    done = subprocess.run(
        ["/usr/bin/env", "git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"bench: git {arguments[0]} failed")
    return done.stdout


def watch(benchmarks: Sequence[str], history: History) -> int:
    """Measure, keep and judge; print a line for each figure."""
    slower = False
    print(TABLE_HEAD)
    for benchmark in benchmarks:
        for fresh in range(1 + FRESH_RUNS):
            figures = measured(benchmark, ROOT)
            history.add(benchmark, figures)
            stands = {name: history.standing(benchmark, name) for name in figures}
            open_ones = [name for name, standing in stands.items() if standing.state == "suspected"]
            if not open_ones:
                break
            if fresh < FRESH_RUNS:
                print(f"bench: {benchmark} runs anew, suspected: {', '.join(open_ones)}", file=sys.stderr)
        for name, figure in figures.items():
            print(row(figure, verdict(stands[name])), flush=True)
            slower |= (stands[name].state, stands[name].direction) == ("confirmed", "slower")
    return SLOWER_EXIT_CODE if slower else 0


def verdict(standing: Standing) -> str:
    """A standing in words, with the change where there is something to compare with."""
    words = " ".join(filter(None, (standing.state, standing.direction)))
    if standing.change is None or not standing.against.suffices:
        return words
    return f"{words}, {100 * standing.change:+.1f} % of time"


def compare(benchmarks: Sequence[str], before: str, rounds: int) -> None:
    """Measure the working tree and another commit in turns; print medians and their ratio."""
    with checked_out(before) as root:
        print(f"| figure | unit | {before} | working tree | ratio, above 1 is better | ranges | beside |")
        print("|---|---|---:|---:|---:|---|---|")
        for benchmark in benchmarks:
            turns = [(measured(benchmark, root), measured(benchmark, ROOT)) for _ in range(rounds)]
            for name in (name for name in turns[0][1] if name in turns[0][0]):
                sides = [[turn[side][name] for turn in turns] for side in (0, 1)]
                print(compared_row(*sides), flush=True)


def compared_row(before: Sequence[Figure], after: Sequence[Figure]) -> str:
    """A line of medians in Markdown; if ranges overlap, the difference may be chance.

    Beside stands what the working tree's last turn was compared with.
    """
    medians = [statistics.median(figure.value for figure in side) for side in (before, after)]
    times = [[figure.as_time for figure in side] for side in (before, after)]
    ratio = statistics.median(times[0]) / statistics.median(times[1])
    apart = max(times[0]) < min(times[1]) or max(times[1]) < min(times[0])
    ranges = "apart" if apart else "overlap"
    last = after[-1]
    parts = [last.name, last.unit, *map(number, medians), f"{ratio:.2f}", ranges, beside(last)]
    return f"| {' | '.join(parts)} |"


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A folder with a commit's files, for so long."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "before")
        git("worktree", "add", "--quiet", "--detach", str(path), revision)
        try:
            yield path
        finally:
            git("worktree", "remove", "--force", str(path))


TABLE_HEAD = "| figure | value | unit | beside, in the same run | verdict |\n|---|---:|---|---|---|"


def row(figure: Figure, verdict: str) -> str:
    """A line of the table in Markdown."""
    return f"| {figure.name} | {number(figure.value)} | {figure.unit} | {beside(figure)} | {verdict} |"


def beside(figure: Figure) -> str:
    """What the figure was compared with in its run, and its goal."""
    goal = []
    if figure.goal is not None:
        goal = [f"goal {number(figure.goal)}{', missed' if figure.misses_goal else ''}"]
    return ", ".join(figure.compared + goal)


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=SHORT_FORMS, help="(default: all of them)")
    parser.add_argument("--before", metavar="COMMIT", help="compare the working tree with it")
    parser.add_argument("--rounds", type=int, default=3, help="of a comparison (default: 3)")
    asked = parser.parse_args()
    benchmarks = asked.only or list(SHORT_FORMS)
    if asked.before:
        compare(benchmarks, asked.before, asked.rounds)
        return 0
    return watch(benchmarks, History(settings.home() / "benchmarks.jsonl"))


if __name__ == "__main__":
    sys.exit(main())
