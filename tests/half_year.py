"""Half a year of weekly runs in a real store, with and without planted changes, for all tests that judge."""

import random
import shutil
import sqlite3
import time
from contextlib import closing

import pytest
import stored
from stored import publish

from steptime.durations import WEEK_S
from steptime.judging.judgements import judge_all
from steptime.recipes.models import Mode
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

WEEKS = 26
USUAL = [1.0] * WEEKS
CELLS = [(size, gpus) for size in ("tiny", "small") for gpus in (1, 2, 4, 8)]
NOISY = ("tiny", 8)
"""A cell whose runs vary by 5 %; those of all others by 1 %."""
FEW = ("small", 8)
"""A cell that ran four times."""

PLANTED = {
    ("tiny", 1): [*USUAL[8:], 1.08, *USUAL[:7]],  # one slow run, long ago
    ("tiny", 4): [*USUAL[6:], *[1.06] * 6],  # slower for six weeks
    ("small", 1): [*USUAL[1:], 1.12],  # slower in its newest run alone
    ("small", 2): [*USUAL[1:], 0.94, 0.94, 0.94],  # faster, with two confirmation runs
    ("small", 4): [*USUAL[1:], 1.05, 1.05, 1.05],  # slower, with two confirmation runs
}
"""The step time levels of cells that differ from the usual: one a week, and more on the last day."""


def history(make_result, size, gpus, levels, *, end, **options):
    """Yield a run for each level. Its steps differ by 2 %, and the first takes twice as long.

    Another variable is set in those runs of `small·fp32·4` that are not usual.
    """
    dice = random.Random(f"{size}-{gpus}-26")  # noqa: S311 - step times, not secrets
    noise = 0.05 if (size, gpus) == NOISY else 0.01
    weeks = min(len(levels), WEEKS)
    for number, level in enumerate(levels):
        mean = 0.2 * gpus * level * dice.gauss(1, noise)
        steps = [round(mean * dice.gauss(1, 0.02), 6) for _ in range(20)]
        changed = (size, gpus) == ("small", 4) and level != 1
        yield make_result(
            f"{size}-{gpus}-{number:02}" if not options else f"profile-{number:02}",
            size=size,
            gpus=gpus,
            step_times=[2 * steps[0], *steps[1:]],
            submitted_at=end - max(0, weeks - 1 - number) * WEEK_S - 3600 + 60 * number,
            environment={"OMP_NUM_THREADS": "2"} if changed else {},
            **options,
        )


@pytest.fixture(scope="session")
def half_years(tmp_path_factory, make_result):
    """Return the addresses of two stores with the same noise; the second also has what is in `PLANTED`."""
    folder, now = tmp_path_factory.mktemp("half-years"), time.time()
    unchanged, planted = (Store(f"sqlite:///{folder / name}.db") for name in ("unchanged", "planted"))
    only_in = {unchanged: [], planted: []}
    # While a connection is open, SQLite runs no checkpoint after each run.
    with closing(sqlite3.connect(folder / "unchanged.db")):
        for cell in CELLS:
            usual = list(history(make_result, *cell, USUAL[:4] if cell == FEW else USUAL, end=now))
            levels = PLANTED.get(cell, USUAL)
            with_plants = list(history(make_result, *cell, levels, end=now)) if cell in PLANTED else usual
            for number, result in enumerate(with_plants):
                if levels[number] == 1:
                    stored.write(unchanged, result)
                else:
                    only_in[planted].append(result)
                    only_in[unchanged] += usual[number : number + 1]
    shutil.copy(folder / "unchanged.db", folder / "planted.db")
    for store, results in only_in.items():
        for result in results:
            stored.write(store, result)
        judge_all(store)  # as if each had been judged when it came, in half the time
    # Neither of these counts: a profile that got slower, and a rejected run.
    for result in history(make_result, "tiny", 1, [*USUAL[:7], 2.0, 2.0, 2.0], end=now, mode=Mode.PROFILE):
        publish(planted, result)
    bad = Verdict(checks=(Check(name="x", passed=False, message="Expected 20 steps, but found 3."),))
    slow = {"step_times": [9.0] * 20, "submitted_at": now}
    publish(planted, make_result("rejected", size="tiny", gpus=2, verdict=bad, **slow))
    return unchanged.url, planted.url
