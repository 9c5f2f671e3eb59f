"""How long a first result takes: clone, `make demo`, and `make demo` again after Airflow was stopped.

    python benchmarks/first_result.py [COMMIT]

pip's and uv's caches must hold the packages: after a change of the locks, run it twice. Other programs on the
machine make it slower; compare the printed load.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, show

ROOT = Path(__file__).parents[1]
GOAL_S = 120


def run(*command: str | Path, folder: Path) -> float:
    """Run a command with its output on stderr; return its wall time in seconds."""
    # `make` decides where state is kept.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPTIME_")}
    began = time.monotonic()
    subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr, check=True)
    return time.monotonic() - began


def first_and_second(commit: str) -> Iterator[Figure]:
    """Measure in a fresh clone, and delete the clone."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "steptime")
        run("git", "clone", "--quiet", ROOT, folder, folder=ROOT)
        run("git", "checkout", "--quiet", commit, folder=folder)
        down = (folder / ".venv/bin/steptime", "down", "--cancel-jobs")
        try:
            yield Figure("make demo in a clone", run("make", "demo", folder=folder), "s", goal=GOAL_S)
            run(*down, folder=folder)
            yield Figure("make demo again", run("make", "demo", folder=folder), "s")
            yield Figure("load of the machine", os.getloadavg()[0], "processes")
        finally:
            run(*down, folder=folder)


if __name__ == "__main__":
    sys.exit(show(first_and_second(*(sys.argv[1:] or ["HEAD"]))))
