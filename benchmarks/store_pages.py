"""What people wait for on a store of half a year: each page's data, and exports.

    python benchmarks/store_pages.py [--runs 3000] [--into URL] [--json]

The store is made, with 50 steps a run, and goes when the benchmark ends; with `--into` it is made in an empty
database, SQLite or PostgreSQL, and stays. One that has runs is measured as it is.

Pages are asked as a browser asks, through the application that Airflow mounts: permissions, queries and JSON
are in each time; the network, and Airflow's check of the login, are not. Counted is the processor time of
this process and of a PostgreSQL on this machine, as other work on it makes the time of the clock worse, which
stands beside: on an idle machine it is no longer. Of a page with a choice it is the one that takes longest.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import httpx  # noqa: TID253 - nothing imports a benchmark

from figures import Figure, add_form, show
from large_store import add_store, measured_store
from page_server import Asked, make_app, pages, serving
from processor import Processor, highest_mb
from steptime.results.store import Store

ROUNDS, TIMES = 3, 5
GOAL_MS = 200
DOWNLOAD_WITHIN_S = 600
EXPORT = """
import sys
from steptime.cli import main
sys.argv[0] = "steptime"
try:
    main()
finally:
    # Not by getrusage: what it gives of a program includes the memory of the one that started it.
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
"""


class Browser:
    """Asks the application in this process."""

    def __init__(self) -> None:
        self._loop = asyncio.Runner()
        transport = httpx.ASGITransport(make_app())
        self._client = httpx.AsyncClient(transport=transport, base_url="http://airflow/api/")

    def ask(self, asked: Asked) -> None:
        """Ask for what a page shows."""
        self._loop.run(self._ask(asked))

    async def _ask(self, asked: Asked) -> None:
        for address in asked:
            answer = await self._client.get(address)
            if answer.status_code != httpx.codes.OK:
                raise SystemExit(f"{address}: {answer.status_code} {answer.text}")


def page_figures(store: Store) -> Iterator[Figure]:
    """How long the data of each page takes, of its slowest selection."""
    browser, processor = Browser(), Processor(store.url)
    for name, selections in pages(store, time.time()).items():
        used_ms, took_ms = max(measured(browser, asked, processor) for asked in selections)
        yield Figure(name, used_ms, "ms", beside={"by the clock": took_ms}, goal=GOAL_MS)


def measured(browser: Browser, asked: Asked, processor: Processor) -> tuple[float, float]:
    """Milliseconds of the processor, and by the clock at the median; of some rounds the best."""
    browser.ask(asked)  # opens connections, and brings what is read into memory
    rounds = []
    for _ in range(ROUNDS):
        took, before = [], processor.seconds()
        for _ in range(TIMES):
            begin = time.perf_counter()
            browser.ask(asked)
            took.append(time.perf_counter() - begin)
        used_s = (processor.seconds() - before) / TIMES
        rounds.append((1000 * used_s, 1000 * statistics.median(took)))
    return min(rounds)


def export_figures(url: str) -> Iterator[Figure]:
    """How quickly all results become a file, by the command and from the pages, and with how much memory."""
    for form in ("csv", "json"):
        took_s, memory_mb, size_mb = export(url, form)
        _, least_mb, _ = export(url, form, "--limit", "1")
        name = f"all results as {form}"
        yield Figure(name, size_mb / took_s, "MB/s", "higher")
        yield Figure(f"{name}: memory", memory_mb, "MB", beside={"of one": least_mb})
    with serving(url) as (address, server):
        httpx.get(f"{address}results.csv?search=made-0000001").raise_for_status()
        before_mb, begin, size = highest_mb(server.pid), time.perf_counter(), 0
        with httpx.stream("GET", f"{address}results.csv", timeout=DOWNLOAD_WITHIN_S) as answer:
            for part in answer.iter_raw():
                size += len(part)
        took_s = time.perf_counter() - begin
        yield Figure("download of all results", size / 1e6 / took_s, "MB/s", "higher")
        name = "download of all results: memory of the server"
        yield Figure(name, highest_mb(server.pid), "MB", beside={"of one": before_mb})


def export(url: str, form: str, *options: str) -> tuple[float, float, float]:
    """Seconds, greatest memory in MB, and MB of all results as the command writes them."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        done = subprocess.run(
            [sys.executable, "-c", EXPORT, "results", "--all", "--format", form, *options],
            env=os.environ | {"STEPTIME_STORE_URL": url},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        size = out.seek(0, os.SEEK_END)
    if done.returncode:
        raise SystemExit(f"the export as {form} failed: {done.stderr}")
    return time.perf_counter() - begin, int(done.stderr.split()[-2]) / 1024, size / 1e6


def figures(store: Store) -> Iterator[Figure]:
    """All of them."""
    yield from page_figures(store)
    yield from export_figures(store.url)


def main() -> int:
    """Measure a store that is there, or one that is made for it; 2 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_store(parser)
    add_form(parser)
    asked = parser.parse_args()
    with measured_store(asked.into, asked.runs) as store:
        os.environ["STEPTIME_STORE_URL"] = store.url
        return show(figures(store), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
