"""How long somebody waits for a first table: a clone, `make demo` in it, and `make demo` again.

    python benchmarks/first_result.py [--commit HEAD] [--json]

Packages have to be in the caches of pip and uv: run it twice after a change of their locks. Between the demos
Airflow is stopped, so that the second one starts it, too. What the demo prints goes to stderr, each line with
the seconds and the seconds of CPU since the clone began. CPU is that of everything that was started, Airflow
and trainings as well; beside it stands what all others on this machine took meanwhile: where that is much,
seconds say more about them. The last figure is how long a fixed loop took meanwhile, of its own CPU: cores
that are shared with other machines run at half of their speed at times, which nothing else shows.
"""

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from figures import Figure, add_form, show

ROOT = Path(__file__).parents[1]
FIRST_GOAL_S, SECOND_GOAL_S = 120, 60
_PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's <sys/prctl.h>."""
LOOPS_EVERY_S = 5.0


def adopt_orphans() -> None:
    """What outlives its parent becomes a child of this process, so that its CPU is counted here."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def own_cpu_s() -> float:
    """Seconds of CPU of all that this process has started, whether it has ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            cpu_s += sum(process.cpu_times()[:4])  # its own, and that of its children that have ended
    return cpu_s


def machine_cpu_s() -> float:
    """Seconds that this machine's cores have been busy since it booted."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def loop_s() -> float:
    """Seconds of CPU of some 0.05 s of computing that is always the same."""
    begin, total = time.thread_time(), 0
    for number in range(1_000_000):
        total += number * number
    return time.thread_time() - begin


class Stopwatch:
    """Wall time, CPU and the cores' speed since it was made."""

    def __init__(self) -> None:
        self._wall, self._own, self._machine = time.monotonic(), own_cpu_s(), machine_cpu_s()
        self._loops = [loop_s()]
        self._stopped = threading.Event()
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self) -> None:
        while not self._stopped.wait(LOOPS_EVERY_S):
            self._loops.append(loop_s())

    def figures(self, what: str, goal_s: float) -> Iterator[Figure]:
        """What something took, and its CPU. It ends with that."""
        self._stopped.set()
        wall, own, machine = time.monotonic() - self._wall, own_cpu_s() - self._own, machine_cpu_s()
        others = {"others on this machine": machine - self._machine - own}
        least = {f"the least of {len(self._loops)}": min(self._loops)}
        yield Figure(what, wall, "s", goal=goal_s)
        yield Figure(f"{what}: CPU", own, "s", beside=others)
        yield Figure(f"{what}: a fixed loop, median", statistics.median(self._loops), "s", beside=least)

    def __str__(self) -> str:
        return f"{time.monotonic() - self._wall:6.1f} s {own_cpu_s() - self._own:6.1f} s of CPU"


def run(command: Sequence[str | Path], folder: Path, watch: Stopwatch) -> None:
    """Run a command, each of its lines on stderr. Exits where it fails."""
    # `make` decides where state is, and what of another Airflow is set here belongs to that.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPTIME_")}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(watch, line, end="", file=sys.stderr, flush=True)
    reap()
    if process.returncode:
        raise SystemExit(f"first_result: {' '.join(map(str, command))} failed; its output is above")


def reap() -> None:
    """Take leave of what has ended after its parent, so that its CPU counts once."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def first_and_second(commit: str) -> Iterator[Figure]:
    """The figures of a fresh clone, which is deleted at the end."""
    adopt_orphans()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "steptime")
        watch = Stopwatch()
        run(("git", "clone", "--quiet", ROOT, folder), ROOT, watch)
        run(("git", "checkout", "--quiet", commit), folder, watch)
        down = (folder / ".venv/bin/steptime", "down", "--cancel-jobs")
        try:
            run(("make", "demo"), folder, watch)
            yield from watch.figures("clone to table", FIRST_GOAL_S)
            run(down, folder, watch)
            watch = Stopwatch()
            run(("make", "demo"), folder, watch)
            yield from watch.figures("second make demo", SECOND_GOAL_S)
        finally:
            run(down, folder, watch)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--commit", default="HEAD", help="of this repository (default: HEAD)")
    add_form(parser)
    asked = parser.parse_args()
    return show(first_and_second(asked.commit), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
