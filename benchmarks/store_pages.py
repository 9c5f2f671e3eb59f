"""How much CPU time the results pages take in a store of many runs.

    python benchmarks/store_pages.py [--runs 2000] [--into URL]

Writes made-up runs into an empty database (default: SQLite in a temporary folder) and judges them, as
published runs are. Then it asks what pages ask for: as a reader of all DAGs, and as one of a single DAG.
"""

import argparse
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Figure, show
from steptime.judging.comparison import compare_since
from steptime.judging.judgements import judge_all
from steptime.judging.series import Series
from steptime.pages import answers
from steptime.store.run_queries import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
stored = importlib.import_module("stored")  # not checked by mypy here: the tests' own helpers
make_result = importlib.import_module("conftest")._result

GOAL_MS, TIMES = 200, 5
DAY_S = 86_400


def fill(store: Store, runs: int) -> None:
    """Write half a year of runs of 60 series, and judge them."""
    now = time.time()
    for number in range(runs):
        at = now - 180 * DAY_S * (1 - number / runs)
        gpus, size = 2 ** (number % 10), f"size{number // 10 % 6}"
        name = f"made-{number:07}"
        dag_run = f"run{number // 60}"
        stored.write(store, make_result(name, size=size, gpus=gpus, submitted_at=at, dag_run_id=dag_run))
    judge_all(store)


def queries(store: Store) -> dict[str, Callable[[], Any]]:
    """Return the queries of each page."""
    newest = store.results(limit=1)[0]
    week, reader = time.time() - 7 * DAY_S, Store(store.url, dags=[newest["dag_id"]])
    return {
        "This week": lambda: answers.comparison(store, compare_since(store, week)),
        "This week, of one DAG": lambda: answers.comparison(reader, compare_since(reader, week)),
        "Compare": lambda: answers.two_sets(store, "since=60d; until=30d", "since=30d", None),
        "Runs": lambda: (store.results(limit=100), store.count(), store.choices()),
        "Runs, filtered": lambda: store.results(limit=100, size="size3", gpus=64),
        "Runs, searched": lambda: store.results(limit=100, search="made-00"),
        "DAG run": lambda: store.results(dag_id="steptime_llama3.1-25.04", dag_run_id="run7"),
        "Trend": lambda: (
            answers.series(store),
            answers.series_trend(store, Series.from_row(newest), may_accept=False),
        ),
    }


def figures(store: Store) -> Iterator[Figure]:
    """Yield the CPU times of the queries in milliseconds, each the median of several."""
    for name, ask in queries(store).items():
        ask()
        took = []
        for _ in range(TIMES):
            began = time.process_time()
            ask()
            took.append(1000 * (time.process_time() - began))
        yield Figure(name, statistics.median(took), "ms", goal=GOAL_MS)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--into", help="address of an empty database")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEPTIME_STORE_URL"] = asked.into or f"sqlite:///{folder}/steptime.db"
        store = Store()
        began = time.monotonic()
        fill(store, asked.runs)
        print(Figure("writing and judging a run", 1000 * (time.monotonic() - began) / asked.runs, "ms"))
        return show(figures(store))


if __name__ == "__main__":
    sys.exit(main())
