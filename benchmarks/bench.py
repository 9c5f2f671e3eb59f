"""The short forms of the benchmarks in one command: is steptime itself slower than it was?

    make bench [ONLY=log_reading] [BEFORE=COMMIT] [ROUNDS=3]
    python benchmarks/bench.py --table

Each figure is a series of a metrics store of its own, `<STEPTIME_HOME>/benchmarks.db`, and is judged as
trainings are: by a prediction interval over the last runs on this machine. What leaves it is suspected, and
its benchmark is run anew at once, which confirms or dismisses it. `--table` prints the newest runs of the
store; with its address as `STEPTIME_STORE_URL` so do `steptime results compare` and the pages.

With BEFORE the benchmarks of this working tree run on its own code and on that of a commit, in turns, and
nothing is kept: ratios are of medians, and where the rounds of both overlap, that stands beside; a figure
that the commit cannot be measured by has the reason in its place. Exit code 3 where a figure is confirmed as
slower.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from figure_store import newest_figures, publish, standing
from figures import Figure, number
from steptime import settings
from steptime.judging.detection import FRESH_RUNS, Standing
from steptime.results.store import Store

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


def attempt(benchmark: str, root: Path) -> tuple[Figures, str]:
    """The figures of the short form of a benchmark, of the code below `root`, by name; and why it failed.

    The reason is the last line that it printed, "" where it has measured all: what it measured before counts.
    """
    script = ROOT / "benchmarks" / f"{benchmark}.py"
    done = subprocess.run(
        [sys.executable, script, *SHORT_FORMS[benchmark], "--json"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "plugins")},
        capture_output=True,
        text=True,
        check=False,
    )
    figures = {figure.name: figure for figure in map(Figure.of_json, done.stdout.splitlines())}
    if done.returncode in (0, 2):  # 2: a goal is missed, which the figure says
        return figures, ""
    last = done.stderr.strip().rpartition("\n")[2]
    return figures, last or f"exit code {done.returncode}"


def measured(benchmark: str, root: Path) -> Figures:
    """The figures of the short form of a benchmark, of the code below `root`; by name."""
    figures, failure = attempt(benchmark, root)
    if failure:
        raise SystemExit(f"bench: {benchmark} failed: {failure}")
    return figures


def git(*arguments: str) -> str:
    """What git prints, of this repository. Exits where it fails, which it says itself."""
    done = subprocess.run(
        ["/usr/bin/env", "git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"bench: git {arguments[0]} failed")
    return done.stdout


def watch(benchmarks: Sequence[str], store: Store) -> int:
    """Measure, publish and judge; print a line for each figure."""
    slower = False
    print(TABLE_HEAD)
    for benchmark in benchmarks:
        arguments = SHORT_FORMS[benchmark]
        for fresh in range(1 + FRESH_RUNS):
            figures = measured(benchmark, ROOT)
            publish(store, benchmark, arguments, figures)
            stands = {name: standing(store, benchmark, arguments, figure) for name, figure in figures.items()}
            open_ones = [name for name, stood in stands.items() if stood and stood.state == "suspected"]
            if not open_ones:
                break
            if fresh < FRESH_RUNS:
                print(f"bench: {benchmark} runs anew, suspected: {', '.join(open_ones)}", file=sys.stderr)
        for name, figure in figures.items():
            stood = stands[name]
            print(row(figure, verdict(stood)), flush=True)
            slower |= stood is not None and (stood.state, stood.direction) == ("confirmed", "slower")
    return SLOWER_EXIT_CODE if slower else 0


def print_table(store: Store) -> None:
    """Print the newest run of each figure that is kept, a table for each machine and benchmark."""
    title = ""
    for run, figure, stood in newest_figures(store):
        cores, commit = run["gpus"], run_commit(store, run["job_name"])
        shown = f"`{run['workload']}`, {run['cluster']}, {cores} cores, {commit}"
        if shown != title:
            title = shown
            print(f"\n{title}\n\n{TABLE_HEAD}")
        print(row(figure, verdict(stood)))


def run_commit(store: Store, job_name: str) -> str:
    """The commit that a run has measured, with `+` where files differed from it."""
    made_by = json.loads(store.record(job_name)["content"])["provenance"]
    return f"{(made_by['git_commit'] or 'no commit')[:10]}{'' if made_by['git_clean'] else '+'}"


def verdict(standing: Standing | None) -> str:
    """A standing in words, with the change where there is something to compare with."""
    if standing is None:
        return "not judged"
    words = " ".join(filter(None, (standing.state, standing.direction)))
    if standing.change is None or not standing.against.suffices:
        return words
    return f"{words}, {100 * standing.change:+.1f} % of time"


def compare(benchmarks: Sequence[str], before: str, rounds: int) -> None:
    """Measure the working tree and another commit in turns; print medians and their ratio.

    What the other commit cannot be measured by, such as a function that it did not have, is printed as that.
    """
    with checked_out(before) as root:
        print(f"| figure | unit | {before} | working tree | ratio, above 1 is better | ranges | beside |")
        print("|---|---|---:|---:|---:|---|---|")
        for benchmark in benchmarks:
            turns = [(attempt(benchmark, root), measured(benchmark, ROOT)) for _ in range(rounds)]
            failures = [failure for (_, failure), _ in turns if failure]
            for name in turns[0][1]:
                after = [figures[name] for _, figures in turns]
                earlier = [figures[name] for (figures, _), _ in turns if name in figures]
                if len(earlier) == rounds:
                    print(compared_row(earlier, after), flush=True)
                else:
                    reason = next(iter(failures), "its run printed no such figure")
                    print(unmeasured_row(before, reason, after), flush=True)


def unmeasured_row(commit: str, reason: str, after: Sequence[Figure]) -> str:
    """A line for what only the working tree could be measured by."""
    last, median = after[-1], statistics.median(figure.value for figure in after)
    why = f"not measurable at {commit}: {reason.replace('|', '/')}"
    return f"| {' | '.join([last.name, last.unit, why, number(median), '', '', beside(last)])} |"


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
    parser.add_argument("--table", action="store_true", help="measure nothing: print what is kept")
    asked = parser.parse_args()
    store = Store(f"sqlite:///{settings.home() / 'benchmarks.db'}")
    if asked.table:
        print_table(store)
        return 0
    benchmarks = asked.only or list(SHORT_FORMS)
    if asked.before:
        compare(benchmarks, asked.before, asked.rounds)
        return 0
    return watch(benchmarks, store)


if __name__ == "__main__":
    sys.exit(main())
