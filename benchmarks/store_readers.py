"""Several people at once on the pages of a store of half a year, beside one alone.

    python benchmarks/store_readers.py [--runs 100000] [--into URL] [--readers 4 8] [--seconds 30]
        [--processes 1] [--json]

Each reader asks for one page after the other without a pause, beginning with another one: many more than as
many people would. They ask one server, in a process of its own, as `steptime up` starts it. A wait is the
processor time that the server and a PostgreSQL on this machine take from a page's first request to the last
byte of its answers, for other readers as well: where a core is free for each of the two, it is at least what
the clock shows. With `--processes 2` the server has as many, and a wait is by the clock: leave the machine
alone meanwhile. The store is made as by store_pages.py, or is there.
"""

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import httpx  # noqa: TID253 - nothing imports a benchmark

from figures import Figure, add_form, show
from large_store import add_store, measured_store
from page_server import Asked, pages, serving
from processor import Processor, family, highest_mb
from steptime.results.store import Store

WAIT_S = 120
FIGURES = {
    "wait for a page, median": "ms",
    "wait for a page that one of 20 exceeds": "ms",
    "computing of a page, mean": "ms",
    "pages a second": "1/s",
    "memory of the server": "MB",
}
"""What is measured, in which unit."""


@dataclass
class Answers:
    """What readers had to wait for."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def read(
    address: str, asked: Sequence[Asked], until: float, clock: Callable[[], float], answers: Answers
) -> None:
    """Ask for one page after the other."""
    with httpx.Client(base_url=address, timeout=WAIT_S) as client:
        for addresses in cycle(asked):
            if time.monotonic() > until:
                return
            begin_s = clock()
            for one in addresses:
                answer = client.get(one)
                if answer.status_code != httpx.codes.OK:
                    answers.failed.append(f"{one}: {answer.status_code} {answer.text}")
            answers.seconds.append(clock() - begin_s)


def together(
    address: str, asked: Sequence[Asked], readers: int, seconds: float, clock: Callable[[], float]
) -> list[float]:
    """What so many readers have to wait for pages, so long; each begins at another page."""
    answers, until = Answers(), time.monotonic() + seconds
    apart = len(asked) // readers or 1
    turns = [
        list(islice(cycle(asked), first, first + len(asked))) for first in range(0, readers * apart, apart)
    ]
    threads = [threading.Thread(target=read, args=(address, turn, until, clock, answers)) for turn in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if answers.failed:
        raise SystemExit(f"{len(answers.failed)} answers failed, the first: {answers.failed[0]}")
    return answers.seconds


def figures(store: Store, numbers: Sequence[int], seconds: float, processes: int) -> Iterator[Figure]:
    """Of one reader, then of several, by the same server."""
    asked = [selections[0] for selections in pages(store, time.time()).values()]
    values: dict[int, list[float]] = {}
    with serving(store.url, processes) as (address, server):
        processor = Processor(store.url, server)
        clock = processor.seconds if processes == 1 else time.monotonic
        # Opens connections, and brings what is read into memory: of each process.
        together(address, asked, 2 * processes, 1, clock)
        for number in (1, *numbers):
            begin_s, began = processor.seconds(), time.monotonic()
            waits = together(address, asked, number, seconds, clock)
            computed_s, took_s = processor.seconds() - begin_s, time.monotonic() - began
            values[number] = [
                1000 * statistics.median(waits),
                1000 * statistics.quantiles(waits, n=20)[-1],
                1000 * computed_s / len(waits),
                len(waits) / took_s,
                sum(highest_mb(process.pid) for process in family(server)),
            ]
            if number == 1:
                continue
            for (name, unit), value, alone in zip(FIGURES.items(), values[number], values[1], strict=True):
                yield Figure(f"{number} readers: {name}", value, unit, beside={"one reader": alone})


def main() -> int:
    """Measure a store that is there, or one that is made for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_store(parser)
    parser.add_argument("--readers", type=int, nargs="+", default=[4, 8], help="at once (default: 4 8)")
    parser.add_argument("--processes", type=int, default=1, help="of the server (default: 1)")
    parser.add_argument("--seconds", type=float, default=30, help="for each number of them (default: 30)")
    add_form(parser)
    asked = parser.parse_args()
    with measured_store(asked.into, asked.runs) as store:
        return show(figures(store, asked.readers, asked.seconds, asked.processes), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
