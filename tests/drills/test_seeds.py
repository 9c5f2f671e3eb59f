"""A seed is a schedule, always and everywhere; and no fault that the drills promise is left out."""

import os
import subprocess
import sys

import pytest

from drills.catalogue import ALSO, DRILLS, POINTS, SERVICE_ALSO, SERVICE_DRILLS
from drills.seeds import FIRST_OF_SERVICE, draw, seeds


@pytest.mark.long
def test_a_seed_is_the_same_schedule_in_every_process() -> None:
    program = "from drills.seeds import draw; print(*map(draw, range(60)), sep='\\n')"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout.splitlines() == [str(draw(seed)) for seed in range(60)]


def test_seeds_of_the_service_go_through_its_drills_points_ways_and_second_faults() -> None:
    schedules = [draw(FIRST_OF_SERVICE + number) for number in range(12 * len(SERVICE_DRILLS))]
    turns = {(one.drill, one.point, one.way) for one in schedules}
    assert turns == {
        (drill.name, point.name, way)
        for drill in SERVICE_DRILLS.values()
        for point in drill.points
        for way in drill.ways
    }
    also = {(one.drill, one.also) for one in schedules}
    bearing = [drill.name for drill in SERVICE_DRILLS.values() if drill.bears_more]
    assert {(name, second) for name in bearing for second in ("", *SERVICE_ALSO)} <= also
    assert set(DRILLS).isdisjoint(SERVICE_DRILLS)


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


def test_each_drill_says_what_is_permitted() -> None:
    for drill in (*DRILLS.values(), *SERVICE_DRILLS.values()):
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
