"""Seeded faults in whole runs: real Airflow, real Slurm over ssh, a stand-in trainer that takes seconds.

`make drills SEEDS=100` drills the first hundred seeds, `make drills SEED=17` one. See docs/testing.md.
"""

import time
from functools import partial

import pytest
from end_to_end.driving import wait_until

from drills.catalogue import DRILLS, POINTS, SERVICE_ALSO, SERVICE_DRILLS, TRIAL_DRILLS
from drills.evidence import collect
from drills.oracle import check, outcomes
from drills.scene import Scene
from drills.seeds import draw, seeds
from drills.table import Outcome

pytestmark = [
    pytest.mark.drill,
    pytest.mark.slurm,
    pytest.mark.end_to_end,
    pytest.mark.exhaustive,
    pytest.mark.timeout(5400),
]

IN_TEST_ALL = (1, 7, 9, 11, 13, 15, 25, 26, 33, 37, 10000, 10002)
"""They strike a worker, the connection, a person's action and all of Airflow; `make drills` has the rest."""


@pytest.fixture
def _mended(site):
    yield
    site.restore()


@pytest.mark.usefixtures("_mended")
@pytest.mark.parametrize("seed", seeds(IN_TEST_ALL))
def test_a_drill(site, seed, record_property):
    schedule = draw(seed)
    drill = (DRILLS | SERVICE_DRILLS | TRIAL_DRILLS)[schedule.drill]
    scene = Scene(site, schedule, drill, POINTS[schedule.point])
    began = time.monotonic()
    found = None
    try:
        perform(scene)
        found = collect(scene)
        outcome = judge(scene, found)
    except BaseException as error:
        first_line = str(error).strip().split("\n")[0][:200]
        red = _row(schedule, f"{type(error).__name__}: {first_line}", found, began, is_red=True)
        record_property("drill", list(red))
        error.add_note("\n".join([str(schedule), *scene.done, f"again: {schedule.command}"]))
        raise
    record_property("drill", list(_row(schedule, outcome, found, began)))


def perform(scene):
    """Let the fault strike, mend it, and wait for the end."""
    schedule, drill, point = scene.schedule, scene.drill, scene.point
    point.prepare(scene)
    scene.start_run()
    wait_until(f"{point.name} ({point.task})", lambda: point.reached(scene), 1200)
    scene.note(f"reached: {point.name}")
    drill.strike(scene)
    scene.note(f"struck: {drill.name}")
    goes_on = schedule.goes_on_first or drill.seen is not None
    if goes_on:
        point.go_on(scene)
        scene.note("let go on")
    if drill.seen is not None:
        wait_until(f"the effect: {drill.seen.__name__}", partial(drill.seen, scene), 900)
    # The duration is part of the schedule: this sleep waits for no event.
    time.sleep(schedule.lasts_s / 2)
    if schedule.also:
        SERVICE_ALSO[schedule.also](scene)
        scene.note(f"struck: {schedule.also}")
    time.sleep(schedule.lasts_s / 2)
    drill.mend(scene)
    if not goes_on:
        point.go_on(scene)
        scene.note("mended, and let go on")
    scene.ended()


def judge(scene, found):
    """Return the outcome. Raises AssertionError if it is not permitted."""
    check(found)
    drill = scene.drill
    deleted = bool(scene.kept.get("deleted"))
    assert deleted == (not found.dag_runs), f"Airflow has {len(found.dag_runs)} DAG runs"
    assert deleted == (not found.tasks), f"Airflow has {len(found.tasks)} tasks of the DAG run"
    assert deleted or {run.state for run in scene.runs} <= {"success", "failed"}, "a DAG run has not ended"
    came_to = set(outcomes(found).values())
    assert len(came_to) == 1, f"the DAG runs came to different ends: {came_to}"
    (outcome,) = came_to
    assert outcome in drill.permitted, f"{outcome}, where only {' or '.join(drill.permitted)} is permitted"
    if outcome == "valid":
        assert {run.state for run in scene.runs} == {"success"}, "a DAG run failed, with a valid result"
    jobs, permitted = len(found.jobs), drill.permitted[outcome]
    assert jobs in permitted, f"{outcome} with {jobs} jobs, where {permitted} are permitted"
    return outcome


def _row(schedule, outcome, found, began, *, is_red=False):
    return Outcome(
        schedule.seed,
        schedule.drill,
        schedule.point,
        ", then ".join(filter(None, (schedule.way, schedule.also))),
        outcome,
        len(found.jobs) if found else 0,
        time.monotonic() - began,
        is_red,
    )
