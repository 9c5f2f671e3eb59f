"""How quickly runs come into a store of half a year, are judged there, and have their old steps moved.

    python benchmarks/store_publishing.py [--runs 100000] [--into URL] [--json]

Published are 100 results of 50 steps, each in a transaction of its own, and one of 100,000 steps. Beside that
stands the bulk load of the database's own driver, `executemany` of sqlite3 or COPY of psycopg: the same rows
into the same tables, in as many transactions. Rates are by the processor time of this process and of a
PostgreSQL on this machine; of three rounds the best counts, publishing and loading in turns.

The store is made, and goes when the benchmark ends; with `--into` it is made in an empty database, and stays.
"""

import argparse
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import sqlalchemy  # noqa: TID253 - nothing imports a benchmark

from figures import Figure, add_form, show
from large_store import STEPS, grow
from made_results import made_results
from processor import Processor
from steptime.judging import judgements
from steptime.results import schema
from steptime.results.database import read_connection, write_transaction
from steptime.results.models import Result
from steptime.results.step_files import move_old_steps
from steptime.results.store import Store

ROUNDS = 3
RESULTS = 100
MANY_STEPS = 100_000
JUDGED = 20
CALLS = 20
MONTHS = 3
LOADS = {"sqlite": "sqlite3.executemany", "postgresql": "psycopg COPY"}

Loaded = list[tuple[str, list[str], list[tuple[Any, ...]]]]
"""What a run has in the tables: the name of each, its columns, its rows."""


def publishing(store: Store, processor: Processor) -> Iterator[Figure]:
    """Rows per second of publishing, beside the driver's bulk load."""
    for name, count, steps in (
        (f"publish {RESULTS} results of {STEPS} steps", RESULTS, STEPS),
        (f"publish a result of {MANY_STEPS:,} steps", 1, MANY_STEPS),
    ):
        results = made_results([f"published-{steps}-{number}" for number in range(count)], steps)
        published, loaded = [], []
        for _ in range(ROUNDS):
            took_s = seconds(processor, lambda: [store.publish(result) for result in results])  # noqa: B023
            runs = [rows_of(store.url, result) for result in results]
            rows = sum(len(some) for run in runs for _, _, some in run)
            published.append(rows / took_s)
            remove(store.url, results)
            loaded.append(rows / seconds(processor, lambda: load(store.url, runs)))  # noqa: B023
            remove(store.url, results)
        driver = LOADS[store.url.partition(":")[0]]
        yield Figure(name, max(published), "rows/s", "higher", beside={driver: max(loaded)})


def judged(store: Store, processor: Processor) -> Iterator[Figure]:
    """How long it takes to publish one more run of a long series, and of a new one, and to judge it."""
    row = store.results(limit=1)[0]
    ways = made_results(["x"], STEPS)[0].run.recipe.parallelism.model_copy(update={"data": row["gpus"]})
    long = {name: row[name] for name in ("workload", "size", "dtype", "gpu_type")} | {"parallelism": ways}
    took = []
    for recipe in (long, {}):
        results = made_results(
            [f"judged-{number}" for number in range(JUDGED)], STEPS, row["cluster"], **recipe
        )
        took_s = seconds(processor, lambda: [judgements.publish(store, one) for one in results])  # noqa: B023
        took.append(1000 * took_s / JUDGED)
        remove(store.url, results)
    yield Figure("publish and judge a run of a long series", took[0], "ms", beside={"of a new one": took[1]})


def moving(store: Store, processor: Processor, folder: str) -> Iterator[Figure]:
    """How quickly steps of old runs are moved, how long it takes to find that none is left, to read one's."""
    os.environ["STEPTIME_STEP_FILES_DIR"] = f"{folder}/steps"
    oldest = store.results()[-1]["job_name"]
    of_store_ms = milliseconds(processor, lambda: store.steps(oldest))
    begin_s, moved = processor.seconds(), 0
    while some := move_old_steps(store, MONTHS):
        moved += some
    took_s = processor.seconds() - begin_s
    yield Figure("old runs whose steps are moved", moved / took_s, "runs/s", "higher")
    look_ms = milliseconds(processor, lambda: move_old_steps(store, MONTHS))
    yield Figure("look for old steps, where all were moved", look_ms, "ms")
    read_ms = milliseconds(processor, lambda: store.steps(oldest))
    yield Figure("read the steps of a moved run", read_ms, "ms", beside={"of the store": of_store_ms})


def seconds(processor: Processor, call: Callable[[], object]) -> float:
    """Of the processor."""
    begin = processor.seconds()
    call()
    return processor.seconds() - begin


def milliseconds(processor: Processor, call: Callable[[], object]) -> float:
    """For one of many calls, in the best round: a PostgreSQL's time is counted in units of 10 ms."""
    rounds = [seconds(processor, lambda: [call() for _ in range(CALLS)]) for _ in range(ROUNDS)]
    return 1000 * min(rounds) / CALLS


def rows_of(url: str, result: Result) -> Loaded:
    """What the store has of a result."""
    name, found = result.job.name, []
    with read_connection(url) as connection:
        for table in schema.metadata.sorted_tables:
            if table.name not in ("runs", "charges") and "run_id" not in table.c:
                continue
            query = sqlalchemy.select(table)
            if "run_id" in table.c:
                query = query.join(schema.runs, table.c.run_id == schema.runs.c.id)
            of_run = schema.charges if table is schema.charges else schema.runs
            rows = connection.execute(query.where(of_run.c.job_name == name)).all()
            if rows:
                plain = [
                    tuple(json.dumps(one) if isinstance(one, dict) else one for one in row) for row in rows
                ]
                found.append((table.name, [column.name for column in table.c], plain))
    return found


def load(url: str, runs: Sequence[Loaded]) -> None:
    """Write what runs have, each in a transaction, as the driver does it in bulk."""
    parsed = sqlalchemy.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(parsed.database), isolation_level=None)) as plain:
            plain.execute("PRAGMA foreign_keys = ON")
            for run in runs:
                plain.execute("BEGIN IMMEDIATE")
                for table, columns, rows in run:
                    names, places = ", ".join(columns), ", ".join("?" for _ in columns)
                    plain.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", rows)  # noqa: S608
                plain.execute("COMMIT")
        return
    import psycopg

    with psycopg.connect(url) as connection:
        for run in runs:
            with connection.transaction(), connection.cursor() as cursor:
                for table, columns, rows in run:
                    names = ", ".join(f'"{column}"' for column in columns)
                    with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                        for row in rows:
                            copy.write_row(row)


def remove(url: str, results: Sequence[Result]) -> None:
    """Take results out of the store again."""
    names = [result.job.name for result in results]
    with write_transaction(url) as connection:
        for table in (schema.runs, schema.charges):
            connection.execute(table.delete().where(table.c.job_name.in_(names)))


def figures(store: Store, folder: str) -> Iterator[Figure]:
    """All of them."""
    processor = Processor(store.url)
    yield from publishing(store, processor)
    yield from judged(store, processor)
    yield from moving(store, processor, folder)


def main() -> int:
    """Measure a store that is made for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000, help="of the store (default: 100000)")
    parser.add_argument(
        "--into", metavar="URL", help="of an empty database (default: an SQLite file that goes)"
    )
    add_form(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(asked.into or f"sqlite:///{folder}/steptime.db")
        if store.count(include_rejected=True):
            parser.error(f"{asked.into} is not empty: its old steps would be moved away")
        grow(store.url, asked.runs)
        return show(figures(store, folder), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
