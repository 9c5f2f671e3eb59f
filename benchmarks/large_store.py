"""A store of half a year: runs of 60 series with their steps, 60 to a sweep's DAG run, judged."""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import insert, select  # noqa: TID253 - nothing imports a benchmark

from made_results import made_results
from steptime.judging.judgements import judge_all
from steptime.results import schema
from steptime.results.database import read_connection, write_transaction
from steptime.results.differences import made_sha256
from steptime.results.store import Store

DAYS = 182
WEEKS = 26
SIZES = 10
SCALES = 6
SERIES = SIZES * SCALES
STEPS = 50
AT_ONCE = 2_000
NOISE = 0.01
REJECTED_EVERY = 23
PROFILE_EVERY = 997
"""So few that the newest thousand of them are all that there are: to find them means to look far back."""
RETIRED = "a100"
"""Type of GPU on which the first size ran in the first half of the time alone: nothing newer has it."""

Row = dict[str, Any]
Like = tuple[Row, dict[str, list[Row]]]
"""A run of a store, and its rows in other tables, by table."""


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the options that `measured_store` takes."""
    parser.add_argument("--runs", type=int, default=3_000, help="of the store that is made (default: 3000)")
    parser.add_argument("--into", metavar="URL", help="of a store (default: an SQLite file that goes)")


@contextmanager
def measured_store(into: str | None, runs: int) -> Iterator[Store]:
    """The store at that address, as it is if it has runs; without an address one that is made and goes."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(into or f"sqlite:///{folder}/steptime.db")
        if not store.count(include_rejected=True):
            grow(store.url, runs)
        yield store


def grow(url: str, count: int) -> None:
    """Write `count` runs into an empty store, and judge them; what takes long is on stderr."""
    like = _one_run()
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        rows = list(_made_runs(like, numbers, count))
        with write_transaction(url) as connection:
            connection.execute(insert(schema.runs), [row for row, _ in rows])
            for name in rows[0][1]:
                of_table = [row for _, others in rows for row in others[name]]
                connection.execute(insert(schema.metadata.tables[name]), of_table)
        _progress(f"{numbers.stop} of {count} runs written")
    judge_all(Store(url), lambda done, of: _progress(f"{done} of {of} series judged"))
    with read_connection(url) as connection:
        if connection.dialect.name == "postgresql":
            plain = connection.execution_options(isolation_level="AUTOCOMMIT")
            plain.exec_driver_sql("SELECT setval('runs_id_seq', max(id)) FROM runs")
            plain.exec_driver_sql("VACUUM ANALYZE")  # as it does by itself, within a minute or so


def _one_run() -> Like:
    """A published run, as a store has it."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/steptime.db"
        (made,) = made_results(["made"], STEPS)
        Store(url).publish(made)
        with read_connection(url) as connection:
            (row,) = connection.execute(select(schema.runs)).mappings()
            tables = ("records", "readings", "validations", "steps")
            others = {
                name: [
                    dict(one) for one in connection.execute(select(schema.metadata.tables[name])).mappings()
                ]
                for name in tables
            }
            return dict(row), others


def _made_runs(like: Like, numbers: range, count: int) -> Iterator[Like]:
    """Runs, each on one of 64 nodes, with seeded noise and with other libraries each week."""
    now = time.time()
    usual, of_tables = like
    for number in numbers:
        dice = random.Random(number)  # noqa: S311 - noise, not a secret
        factor = 1 + dice.gauss(0, NOISE)
        times = {
            name: value * factor
            for name, value in usual.items()
            if isinstance(value, float) and name.startswith("step") and "time" in name
        }
        row = usual | times | _identity(number, number / count) | _state(number)
        row |= {
            "id": number + 1,
            "submitted_at": now - DAYS * 86400 * (1 - (number + 1) / count),
            "content_sha256": f"{number:064x}",
            "nodes": f"node{dice.randrange(64)}",
        }
        own = {name: [one | {"run_id": row["id"]} for one in some] for name, some in of_tables.items()}
        week = int(WEEKS * number / count)
        own["records"] = [
            _record(of_tables["records"][0]["content"], week, row["nodes"]) | {"run_id": row["id"]}
        ]
        yield row, own


def _identity(number: int, part: float) -> Row:
    """What makes a run's series, and where it belongs; `part` is how far in the half year it is, of 1."""
    cell, sweep_run = number % SERIES, number // SERIES
    size, gpus = cell // SCALES, 8 * 2 ** (cell % SCALES)
    dtype = ("bf16", "fp8")[size % 2]
    newer = size >= SIZES // 2
    return {
        "job_name": f"made-{number:07}-1",
        "workload": "nemotron4-25.04" if size >= SIZES - 3 else "llama3.1-25.04",
        "size": f"size{size}",
        "dtype": dtype,
        "gpu_type": RETIRED if size == 0 and part < 0.5 else "gb200" if newer else "h100",
        "cluster": "west" if newer else "east",
        "scaling": "strong" if size == 1 else "weak",
        "mode": "profile" if number % PROFILE_EVERY == 0 else "performance",
        "gpus": gpus,
        "data_parallel": gpus,
        "label": f"size{size}·{dtype}·{gpus}",
        "sweep": "nightly" if newer else "weekly",
        "sweep_run": f"scaling_sweep/made_{sweep_run}",
        "dag_run_id": f"made_{sweep_run}_{cell}",
    }


def _state(number: int) -> Row:
    if number % REJECTED_EVERY:
        return {"state": "valid"}
    return {"state": "rejected", "reason": "Expected steps 10 to 19, but 12 is missing."}


@cache
def _record(like: str, week: int, node: str) -> Row:
    """A row of `records`: as another one, with the libraries of a week, and on one node."""
    record = json.loads(like)
    record |= {"nodes": [node], "versions": record["versions"] | {"torch": f"2.13.{week}"}}
    content = json.dumps(record, indent=2)
    return {
        "content": content,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "made_sha256": made_sha256(content),
    }


def _progress(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
