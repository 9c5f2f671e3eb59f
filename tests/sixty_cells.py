"""Half a year of a weekly sweep of 60 cells on three clusters, with and without what is planted in it.

The runs are made up: levels, and noise by seed. Runs differ by 1 %, those of the noisy cell by 5 %.
"""

import random
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from functools import partial

import pytest

from steptime.clusters.base import JobState, JobStatus
from steptime.judging.judgements import accept, judge_all
from steptime.results.models import Result
from steptime.results.store import Store

MakeResult = Callable[..., Result]
Cell = tuple[str, str, int]
"""Cluster, size, GPUs."""

WEEK_S = 7 * 86_400.0
WEEKS = 26
LAST = WEEKS - 1
CLUSTERS = ("local", "east", "west")
CELLS = [(cluster, size, gpus) for cluster in CLUSTERS for size in "abcde" for gpus in (1, 2, 4, 8)]
NODES = {cluster: [f"{cluster[0]}{number:02}" for number in range(1, 13)] for cluster in CLUSTERS}

STEP, DRIFT, ACCEPTED, NOISY = (
    ("local", size, gpus) for size, gpus in (("a", 4), ("b", 4), ("c", 4), ("d", 8))
)
BAD_NODE = "e02"
"""The one of its cluster that most cells ran on in the last week, by these seeds: six of 20."""
ACCEPTED_FROM = 16
"""Week from which on a level is slower by 8 %, which somebody accepted."""


def planted_level(cell: Cell, week: int, nodes: Collection[str]) -> float:
    """What a step of the cell takes relative to its usual time."""
    last = week == LAST
    if cell == STEP and last:
        return 1.05
    if cell == DRIFT:
        return 1 + 0.0025 * week
    if cell == ACCEPTED and week >= ACCEPTED_FROM:
        return 1.08
    if BAD_NODE in nodes and last:
        return 1.06
    return 1.03 if cell[0] == "west" and last else 1.0


def environment(cell: Cell, week: int) -> dict[str, str]:
    """What was set otherwise, where something is planted that has a reason."""
    if week < LAST:
        return {}
    return {"NCCL_ALGO": "Ring"} if cell[0] == "west" else {"OMP_NUM_THREADS": "2"} if cell == STEP else {}


def runs_of(make_result: MakeResult, cell: Cell, now: float) -> Iterator[tuple[Result, Result]]:
    """A run each week as it usually is, and with what is planted; the same one where nothing is.

    Of the cell with the planted step there are two more in the last week, which decide. The runs of one week
    are those of one sweep, on nodes that were free.
    """
    cluster, size, gpus = cell
    dice = random.Random(f"{cell}-16")  # noqa: S311 - step times, not secrets
    noise = 0.05 if cell == NOISY else 0.01
    usual_s = (0.8 + 0.4 * "abcde".index(size)) * (1 + 0.01 * (gpus - 1))
    make = partial(make_result, size=size, gpus=gpus)
    for number in range(WEEKS + (2 if cell == STEP else 0)):
        week = min(number, LAST)
        nodes = tuple(sorted(dice.sample(NODES[cluster], max(1, gpus // 2))))
        mean = usual_s * dice.gauss(1, noise)
        steps = [mean * dice.gauss(1, 0.02) for _ in range(20)]
        at = now - (LAST - week) * WEEK_S - 7200 + 60 * CELLS.index(cell) + 600 * (number - week)
        made = partial(made_run, make, cell, number, at=at, nodes=nodes)
        usual, level = made(steps, {}), planted_level(cell, week, nodes)
        planted = usual if level == 1 else made([level * step for step in steps], environment(cell, week))
        yield usual, planted


def made_run(
    make: MakeResult,
    cell: Cell,
    number: int,
    steps: Sequence[float],
    changed: dict[str, str],
    *,
    at: float,
    nodes: tuple[str, ...],
) -> Result:
    """The run of a cell with this number, submitted `at` (Unix time); `changed` is what was set otherwise."""
    cluster, size, gpus = cell
    like = make()
    made_by = like.submitted.made_by
    of_sweep = {
        "sweep": "weekly",
        "sweep_run": f"scaling_sweep/week-{min(number, LAST):02}",
        "dag_run_id": f"cell-{cluster}-{size}-{gpus}-{number:02}",
        "environment": made_by.environment | changed,
    }
    return make(
        f"{cluster}-{size}-{gpus}-{number:02}",
        step_times=[round(step, 6) for step in steps],
        submitted_at=at,
        run=like.run.model_copy(update={"cluster": cluster}),
        made_by=made_by.model_copy(update=of_sweep),
        status=JobStatus(
            state=JobState.SUCCEEDED,
            exit_code=0,
            started_at=at + 30 * gpus,
            ended_at=at + 300,
            nodes=nodes,
        ),
    )


@pytest.fixture(scope="session")
def sixty_cells(tmp_path_factory: pytest.TempPathFactory, make_result: MakeResult) -> tuple[str, str]:
    """Addresses of two stores with the same noise; what is planted is in the second."""
    folder, now = tmp_path_factory.mktemp("sixty-cells"), time.time()
    unchanged, planted = (Store(f"sqlite:///{folder / name}.db") for name in ("unchanged", "planted"))
    runs = [pair for cell in CELLS for pair in runs_of(make_result, cell, now)]
    apart = [(usual, changed) for usual, changed in runs if usual is not changed]
    # As long as a connection is open SQLite does not tidy up after each run.
    with closing(sqlite3.connect(folder / "unchanged.db")):
        for usual, changed in runs:
            if usual is changed:
                unchanged.publish(usual)
    shutil.copy(folder / "unchanged.db", folder / "planted.db")
    for place, store in enumerate((unchanged, planted)):
        for pair in apart:
            store.publish(pair[place])
    cluster, size, gpus = ACCEPTED
    first = f"{cluster}-{size}-{gpus}-{ACCEPTED_FROM:02}"
    accept(planted, first, note="gradients are checked now", accepted_by="ada")
    for store in (unchanged, planted):
        judge_all(store)
    return unchanged.url, planted.url
