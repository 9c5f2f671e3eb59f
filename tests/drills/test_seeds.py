"""A seed is a schedule, always and everywhere; and no fault that the drills promise is left out."""

import os
import subprocess
import sys

import pytest

from drills.catalogue import ALSO, DRILLS, POINTS
from drills.seeds import draw, seeds
from steptime import settings


def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    program = "from drills.seeds import draw; print(*map(draw, range(60)), sep='\\n')"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout.splitlines() == [str(draw(seed)) for seed in range(60)]


def test_consecutive_seeds_go_through_all_drills() -> None:
    assert {draw(seed).drill for seed in range(5, 5 + len(DRILLS))} == set(DRILLS)


def test_a_hundred_seeds_differ_in_point_way_and_time() -> None:
    schedules = [draw(seed) for seed in range(1, 101)]
    for drill in DRILLS.values():
        mine = [schedule for schedule in schedules if schedule.drill == drill.name]
        assert len(mine) >= 2
        assert {schedule.point for schedule in mine} <= {point.name for point in drill.points}
        assert all(drill.lasts_s[0] <= schedule.lasts_s <= drill.lasts_s[1] for schedule in mine)
    assert {schedule.point for schedule in schedules} == set(POINTS)
    assert len({schedule.lasts_s for schedule in schedules}) > 30
    assert {schedule.also for schedule in schedules} == {"", *ALSO}
    assert len({schedule.goes_on_first for schedule in schedules}) == 2


def test_each_drill_is_documented() -> None:
    rows = (settings.shipped("config").parent / "docs/drills.md").read_text().split("## Drills")[1]
    told = " ".join(line.split("|")[1] for line in rows.splitlines() if line.startswith("|"))
    for name in DRILLS:
        first, _, ending = name.partition(" while ")
        assert first in told, name
        assert ending in told, name


def test_each_drill_says_what_is_permitted() -> None:
    for drill in DRILLS.values():
        assert set(drill.permitted) <= {"valid", "failed", "cancelled"}
        assert bool(drill.reason) == ("failed" in drill.permitted), drill.name


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("", (3, 4)), ("17", (17,)), ("1-3", (1, 2, 3)), ("3,8-9", (3, 8, 9)), ("0-0", (0,))],
)
def test_the_environment_names_the_seeds(
    monkeypatch: pytest.MonkeyPatch, asked: str, expected: tuple[int, ...]
) -> None:
    monkeypatch.setenv("DRILL_SEEDS", asked)
    assert seeds((3, 4)) == expected
