"""How many seconds of CPU the DAG files take to import beyond Airflow itself, which reads them often.

    python benchmarks/dag_import.py [--limit SECONDS] [--profile] [--json]

A process imports what Airflow's DAG processor has imported, and each file is read in forks of it, as that
does. The best of five counts: other work on the machine only adds. Beside it stands what the import of
`airflow.sdk` takes, which every DAG file of anybody begins with. `--profile` shows in which packages the
time of each file went. Exit code 2 if a file takes longer than the limit.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import steptime
from figures import Figure, add_form, number, show

DAGS = Path(steptime.__file__).parents[2] / "dags"
ROUNDS = 5
PROBE = """
import os, runpy, sys, time
begin = time.process_time()
import airflow.sdk
print("airflow", time.process_time() - begin)
import airflow.dag_processing.manager, airflow.triggers.base
rounds, *files = sys.argv[1:]
for file in files * int(rounds):
    sys.stdout.flush()
    if not os.fork():
        print("begins", file, file=sys.stderr)
        begin = time.process_time()
        runpy.run_path(file)
        print(file, time.process_time() - begin)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"{file} cannot be imported")
"""
_IMPORTED = re.compile(r"import time: +(?P<us>\d+) \| +\d+ \| +(?P<package>\w+)")
"""A line of Python's `-X importtime`: microseconds of a module alone."""
_SHOWN_PACKAGES = 5


def probed(files: Sequence[Path], rounds: int, *options: str) -> tuple[list[tuple[str, float]], str]:
    """Seconds to import `airflow`, then of each round those of each file; and what stands on stderr."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *options, "-c", PROBE, str(rounds), *map(str, files)],
            env=os.environ | {"AIRFLOW_HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = (line.rpartition(" ") for line in done.stdout.splitlines())
    return [(what, float(seconds)) for what, _, seconds in lines], done.stderr


def imports(files: Sequence[Path], limit: float) -> Iterator[Figure]:
    """A figure for each file."""
    ((_, airflow_s), *taken), _ = probed(files, ROUNDS)
    for file in files:
        best = min(seconds for what, seconds in taken if what == str(file))
        beside = {"airflow.sdk itself": airflow_s}
        yield Figure(f"import of {file.name}", best, "s", beside=beside, goal=limit)


def profile(files: Sequence[Path]) -> Iterator[str]:
    """A line for each file: the packages whose modules took longest to import, without what these import."""
    _, printed = probed(files, 1, "-X", "importtime")
    for part in printed.split("begins ")[1:]:
        file, _, lines = part.partition("\n")
        spent: Counter[str] = Counter()
        for found in _IMPORTED.finditer(lines):
            spent[found["package"]] += int(found["us"])
        shown = (f"{package} {number(us / 1e6)}" for package, us in spent.most_common(_SHOWN_PACKAGES))
        yield f"{Path(file).name:28} {number(spent.total() / 1e6):>7} s importing: {', '.join(shown)}"


def main() -> int:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit", type=float, default=0.3, help="seconds a file may take (default: 0.3)")
    parser.add_argument("--profile", action="store_true", help="show by package what imports take instead")
    add_form(parser)
    asked = parser.parse_args()
    files = sorted(DAGS.glob("*.py"))
    if asked.profile:
        print("\n".join(profile(files)))
        return 0
    return show(imports(files, asked.limit), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
