"""Draws schedules from seeds: the same seed is always the same schedule."""

import os
import random

from drills.catalogue import ALSO, DRILLS
from drills.schedule import Schedule


def draw(seed: int) -> Schedule:
    """The schedule of a seed. Consecutive seeds go through all drills, so that none is left out by chance."""
    drill = tuple(DRILLS.values())[seed % len(DRILLS)]
    chance = random.Random(f"drill {seed}")  # noqa: S311 (a schedule is no secret)
    return Schedule(
        seed=seed,
        drill=drill.name,
        point=chance.choice(drill.points).name,
        way=chance.choice(drill.ways),
        lasts_s=round(chance.uniform(*drill.lasts_s), 1),
        goes_on_first=chance.random() < 0.5,
        also=chance.choice(tuple(ALSO)) if drill.bears_more and chance.random() < 0.25 else "",
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
