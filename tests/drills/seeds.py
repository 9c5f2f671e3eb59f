"""Draws schedules from seeds: the same seed is always the same schedule."""

import itertools
import os
import random

from drills.catalogue import ALSO, DRILLS
from drills.schedule import Schedule


def draw(seed: int) -> Schedule:
    """The schedule of a seed.

    Consecutive seeds go through all drills, and then through the points and ways of each and through the
    second faults, so that none is left out by chance.
    """
    turn, number = divmod(seed, len(DRILLS))
    drill = tuple(DRILLS.values())[number]
    turns = list(itertools.product(drill.points, drill.ways))
    random.Random(drill.name).shuffle(turns)  # noqa: S311 (a schedule is no secret)
    point, way = turns[turn % len(turns)]
    chance = random.Random(f"drill {seed}")  # noqa: S311
    return Schedule(
        seed=seed,
        drill=drill.name,
        point=point.name,
        way=way,
        lasts_s=round(chance.uniform(*drill.lasts_s), 1),
        goes_on_first=chance.random() < 0.5,
        also=tuple(ALSO)[number % len(ALSO)] if drill.bears_more and (turn + number) % 4 == 0 else "",
        part=round(chance.uniform(0.2, 0.8), 2),
        step_s=round(chance.uniform(0.1, 0.2), 3),
    )


def seeds(default: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds to drill: `DRILL_SEEDS`, as `17`, `1-100` or `3,8-10`, else `default`."""
    asked = os.environ.get("DRILL_SEEDS", "")
    parts = [part.partition("-") for part in asked.split(",") if part]
    return (
        tuple(seed for first, _, last in parts for seed in range(int(first), int(last or first) + 1))
        or default
    )
