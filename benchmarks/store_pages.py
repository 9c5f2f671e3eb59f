"""How long what people wait for takes on a store of half a year: each page's data, and exports.

    python benchmarks/store_pages.py --like sqlite:////path/steptime.db
    python benchmarks/store_pages.py --like URL --runs 100000 --into postgresql://user@host/empty

The store is made from one with real runs (of `make demo`), which are repeated over half a year with seeded
noise, on any of 64 nodes, and with other libraries each week. It goes when the benchmark ends. What a page
asks for is called as the page's server calls it, nine times; the middle of these counts. Exports run as a
program, whose greatest memory is told.
Exit code 2 if a page is over the limit.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from sqlalchemy import insert, select  # noqa: TID253 - nothing imports a benchmark

DAYS = 182
WEEKS = 26
SERIES = 60
STEPS = 50
ROUNDS = 9
AT_ONCE = 2_000
NOISE = 0.01
EXPORT = """
import sys
from steptime.cli import main
sys.argv[0] = "steptime"
try:
    main()
finally:
    # Not by getrusage: what it tells of a program includes the memory of the one that started it.
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""


def read_runs(url: str) -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """Valid performance runs of a store, each with the rows that it has in other tables, by table."""
    from steptime.results.database import read_connection
    from steptime.results.schema import readings, records, runs

    with read_connection(url) as connection:
        found = connection.execute(
            select(runs).where(runs.c.state == "valid", runs.c.mode == "performance")
        ).mappings()
        return [
            (
                dict(row),
                {
                    table.name: dict(
                        connection.execute(select(table).where(table.c.run_id == row["id"])).mappings().one()
                    )
                    for table in (records, readings)
                },
            )
            for row in found.all()
        ]


def grow(url: str, like: list[Any], count: int) -> None:
    """Write `count` runs of 60 series, 60 to a sweep's DAG run, and their steps."""
    from steptime.results import schema
    from steptime.results.database import write_transaction
    from steptime.results.searching import searched_row

    for first in range(0, count, AT_ONCE):
        with write_transaction(url) as connection:
            rows = list(made_runs(like, range(first, min(first + AT_ONCE, count)), count))
            connection.execute(insert(schema.runs), [row for row, _ in rows])
            connection.execute(
                insert(schema.searched), [{"run_id": row["id"], **searched_row(row)} for row, _ in rows]
            )
            for name in ("records", "readings"):
                of_table = [others[name] | {"run_id": row["id"]} for row, others in rows]
                connection.execute(insert(schema.metadata.tables[name]), of_table)
            connection.execute(insert(schema.steps), [step for row, _ in rows for step in steps_of(row)])
        progress(f"{first + len(rows)} of {count} runs written")


def made_runs(like: list[Any], numbers: range, count: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Rows of `runs`, with the others of the run that each was made from."""
    now = time.time()
    for number in numbers:
        random_of_run = random.Random(number)  # noqa: S311 - noise, not a secret
        cell, sweep_run = number % SERIES, f"scaling_sweep/made_{number // SERIES}"
        row, others = like[cell % len(like)]
        gpus = 8 * 2 ** (cell % 6)
        made = {
            "id": number + 1,
            "job_name": f"made-{number:07}-1",
            "size": f"size{cell // 6}",
            "gpus": gpus,
            "label": f"size{cell // 6}·{row['dtype']}·{gpus}",
            "submitted_at": now - DAYS * 86400 * (1 - (number + 1) / count),
            "sweep": "weekly",
            "sweep_run": sweep_run,
            "dag_id": row["dag_id"] or "llama31",
            "dag_run_id": f"made_{number // SERIES}_{cell}",
            "content_sha256": f"{number:064x}",
            "nodes": f"node{random_of_run.randrange(64)}",
        }
        record = record_of(others["records"]["content"], WEEKS * number // count, made["nodes"])
        factor = 1 + random_of_run.gauss(0, NOISE)
        times = {
            name: value * factor
            for name, value in row.items()
            if isinstance(value, float) and name.startswith("step") and "time" in name
        }
        yield row | times | made, others | {"records": record}


@cache
def record_of(like: str, week: int, node: str) -> dict[str, Any]:
    """A row of `records`: as another one, with the libraries of a week, and on one node."""
    from steptime.results.differences import made_sha256

    record = json.loads(like)
    record |= {"nodes": [node], "versions": record["versions"] | {"torch": f"2.13.{week}"}}
    content = json.dumps(record, indent=2)
    return {
        "content": content,
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "made_sha256": made_sha256(content),
    }


def steps_of(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The steps of a run, of its mean time each."""
    for position in range(STEPS):
        yield {
            "run_id": row["id"],
            "position": position,
            "global_step": position,
            "step_time_s": row["step_time_mean_s"],
            "loss": 1.0,
        }


def pages(url: str) -> dict[str, Callable[[], Any]]:
    """What each page asks its server for."""
    from steptime.results.store import Store
    from steptime.web import answers

    store = Store(url, dags=["llama31", "scaling_sweep"])
    newest = store.results(limit=1)[0]["job_name"]
    week = time.time() - 7 * 86400

    def runs(search: str = "", **query: str) -> Any:
        asked: Any = SimpleNamespace(query_params=query)
        return answers.results(store, answers._selection(store, asked, None, search), 200)

    return {
        "This week": lambda: answers.comparison(store, week),
        "Runs, newest 200": runs,
        "Runs, of a size": lambda: runs(size="size3"),
        "Runs, searched": lambda: runs("size3 made-00"),
        "tab of a sweep's run": lambda: runs(dag_id="scaling_sweep", dag_run_id="made_3"),
        "Trend, what there is": lambda: answers.series(store),
        "Trend, one series": lambda: answers.trend_of(store, lambda _: True, newest),
        "Scaling": lambda: answers.scaling(store, None),
        "Run": lambda: answers.run(store, newest),
    }


def measured(call: Callable[[], Any]) -> tuple[float, int]:
    """Milliseconds at the median, and bytes of the answer; a call before these opens connections."""
    size = len(call().body)
    return median_ms(call), size


def median_ms(call: Callable[[], Any]) -> float:
    """Milliseconds that a call takes, the middle of some times."""
    took = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return 1000 * statistics.median(took)


def export(url: str, form: str) -> tuple[float, float, int]:
    """Seconds, greatest memory in MB, and bytes of all results as a file of this form."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        done = subprocess.run(
            [sys.executable, "-c", EXPORT, "results", "--all", "--format", form],
            env=os.environ | {"STEPTIME_STORE_URL": url},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        size = out.seek(0, os.SEEK_END)
    if done.returncode:
        raise SystemExit(f"the export as {form} failed: {done.stderr}")
    return time.perf_counter() - begin, int(done.stderr.split()[-2]) / 1024, size


def show_moved_steps(url: str, folder: str) -> None:
    """Print what moving the steps of the oldest runs takes, and what reading a moved run's does."""
    from steptime import settings
    from steptime.results.step_files import move_old_steps
    from steptime.results.store import Store

    os.environ["STEPTIME_STEP_FILES_DIR"] = f"{folder}/steps"
    store = Store(url)
    oldest = store.results()[-1]["job_name"]
    in_store_ms = median_ms(lambda: store.steps(oldest))
    begin = time.perf_counter()
    moved = move_old_steps(store, months=3)
    took_s = time.perf_counter() - begin
    [file] = settings.step_files_dir().iterdir()
    size = file.stat().st_size
    print(f"{f'steps of {moved} old runs moved':24} {took_s:8.1f} s  {size / 1000:10.1f} kB")
    in_file_ms = median_ms(lambda: store.steps(oldest))
    print(f"{'steps of a moved run':24} {in_file_ms:8.1f} ms; before {in_store_ms:.1f} ms")


def progress(sentence: str) -> None:
    """Tell whoever waits."""
    print(sentence, file=sys.stderr, flush=True)


def main() -> int:
    """Print a table; 2 where a page is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--like", required=True, help="address of a store with runs to repeat")
    parser.add_argument("--into", help="address of an empty PostgreSQL database (default: an SQLite file)")
    parser.add_argument("--runs", type=int, default=100_000, help="how many (default: 100000)")
    parser.add_argument("--limit", type=float, default=200, help="ms a page's data may take (default: 200)")
    asked = parser.parse_args()
    from steptime.judging.judgements import judge_all
    from steptime.results.store import Store

    like = read_runs(asked.like)
    if not like:
        parser.error(f"{asked.like} has no valid performance run")
    with tempfile.TemporaryDirectory() as folder:
        url = asked.into or f"sqlite:///{folder}/steptime.db"
        begin = time.perf_counter()
        grow(url, like, asked.runs)
        progress(f"written in {time.perf_counter() - begin:.0f} s; judging them")
        begin = time.perf_counter()
        judge_all(Store(url), lambda done, of: progress(f"{done} of {of} series judged"))
        progress(f"judged in {time.perf_counter() - begin:.0f} s")
        slow = False
        kind = url.partition(":")[0]
        print(f"{asked.runs} runs, {asked.runs * STEPS} steps, {kind}; limit {asked.limit:.0f} ms")
        for name, call in pages(url).items():
            took_ms, size = measured(call)
            slow |= took_ms > asked.limit
            over = "  over the limit" if took_ms > asked.limit else ""
            print(f"{name:24} {took_ms:8.1f} ms {size / 1000:10.1f} kB{over}", flush=True)
        for form in ("csv", "json"):
            took_s, memory_mb, size = export(url, form)
            what = f"all results as {form}"
            print(f"{what:24} {took_s:8.1f} s  {size / 1e6:10.1f} MB, memory {memory_mb:.0f} MB")
        show_moved_steps(url, folder)
    return 2 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
