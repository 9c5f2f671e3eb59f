"""Draws schedules from seeds: the same seed is always the same schedule."""

import itertools
import os
import random

from drills.catalogue import ALSO, DRILLS, SERVICE_ALSO, SERVICE_DRILLS, TRIAL_DRILLS
from drills.schedule import Schedule

FAMILY = 10_000
"""Each family of drills has so many seeds, so that new ones leave the meaning of the others' seeds."""
FAMILIES = ((DRILLS, ALSO), (SERVICE_DRILLS, SERVICE_ALSO), (TRIAL_DRILLS, ALSO))
"""Drills and second faults: of one run, with Airflow as a whole killed, and of trials."""


def draw(seed):
    """Return the schedule of a seed.

    Consecutive seeds go through all drills, then through the points and ways of each and through the second
    faults, so that none is left out by chance.
    """
    drills, second_faults = FAMILIES[seed // FAMILY]
    of_service = drills is SERVICE_DRILLS
    turn, number = divmod(seed % FAMILY, len(drills))
    drill = tuple(drills.values())[number]
    turns = list(itertools.product(drill.points, drill.ways))
    random.Random(drill.name).shuffle(turns)  # noqa: S311 (a schedule is no secret)
    point, way = turns[turn % len(turns)]
    chance = random.Random(f"drill {seed}")  # noqa: S311
    also = tuple(second_faults)[(turn // 2 if of_service else number) % len(second_faults)]
    return Schedule(
        seed=seed,
        drill=drill.name,
        point=point.name,
        way=way,
        lasts_s=round(chance.uniform(*drill.lasts_s), 1),
        goes_on_first=chance.random() < 0.5,
        also=also if drill.bears_more and (turn + number) % (2 if of_service else 4) == 0 else "",
        step_s=round(chance.uniform(0.1, 0.2), 3),
    )


def seeds(default):
    """Return the seeds to drill: `DRILL_SEEDS`, as `17`, `1-100` or `3,8-10`, else `default`."""
    asked = os.environ.get("DRILL_SEEDS", "")
    parts = [part.partition("-") for part in asked.split(",") if part]
    return (
        tuple(seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1))
        or default
    )
