"""How many seconds of CPU the DAG files take to import beyond Airflow itself, which reads them often.

    python benchmarks/dag_import.py [--limit SECONDS] [--json]

Each file is read in a fresh interpreter that has imported what Airflow's DAG processor has, whose forks read
the files. The best of five counts: other work on the machine only adds. Exit code 2 if a file takes longer
than the limit.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import steptime
from figures import Figure, add_form, show

DAGS = Path(steptime.__file__).parents[2] / "dags"
ROUNDS = 5
PROBE = """
import runpy, sys, time
import airflow.sdk, airflow.dag_processing.manager, airflow.triggers.base
begin = time.process_time()
runpy.run_path(sys.argv[1])
print(time.process_time() - begin)
"""


def import_s(file: Path) -> float:
    """Seconds to import one DAG file once Airflow is there."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROBE, str(file)],
            env=os.environ | {"AIRFLOW_HOME": home},
            capture_output=True,
            text=True,
            check=True,
        )
    return float(done.stdout.splitlines()[-1])


def imports(limit: float) -> Iterator[Figure]:
    """A figure for each file."""
    for file in sorted(DAGS.glob("*.py")):
        best = min(import_s(file) for _ in range(ROUNDS))
        yield Figure(f"import of {file.name}", best, "s", goal=limit)


def main() -> int:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit", type=float, default=0.3, help="seconds a file may take (default: 0.3)")
    add_form(parser)
    asked = parser.parse_args()
    return show(imports(asked.limit), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
