"""Whole sweeps in one DAG run: one of sixty cells during which Airflow is killed, and one with few GPUs.

Slurm's accounting must have one job for each attempt of each cell, and none may be left.
"""

from collections import Counter

import pytest
import yaml
from end_to_end.driving import wait_until

from drills import faults, points
from drills.catalogue import Drill
from drills.evidence import settled_jobs
from drills.oracle import check_jobs
from drills.scene import SUBMIT, Scene
from drills.schedule import Schedule
from drills.site import CLUSTER, SWEEP_DAG, open_site

pytestmark = [
    pytest.mark.drill,
    pytest.mark.slurm,
    pytest.mark.end_to_end,
    pytest.mark.exhaustive,
    pytest.mark.timeout(7200),
]

NAME = "sixty"
CELLS, HELD, NODES = 60, 30, 8
FREE = CELLS - HELD - 1  # the first cells
FAILING = FREE  # between the free and the held cells
_WITHIN_S = 3600
_CELL = {"workload": "llama3.1", "size": "tiny", "gpus": 1}


@pytest.fixture
def site(slurm_of_session):
    """Yield a site whose Airflow has its usual patience, as sixty cells keep it busy."""
    with open_site(slurm_of_session, {}, impatient=False) as opened:
        yield opened


@pytest.fixture
def scene(site):
    """Return a sweep of which half of the cells wait at the gate in mid-training, and one fails."""
    scene = _scene(site, "a sweep of sixty cells")
    free = site.gate("never closed").environment
    runs = [
        {"max_steps": [*range(20, 20 + FREE)], "environment": free},
        {"max_steps": [20 + FREE], "environment": {**free, "STAND_IN": "out_of_memory"}},
        {"max_steps": [*range(21 + FREE, 20 + CELLS)], "environment": scene.training.environment},
    ]
    sweep = {"name": NAME, "cluster": CLUSTER, "gpu_hours_max": 1000, "runs": [_CELL | run for run in runs]}
    site.sweep_file.with_stem(NAME).write_text(yaml.safe_dump(sweep))
    return scene


def test_a_sweep_is_killed_stopped_and_cells_of_it_run_again(scene):
    site = scene.site
    scene.training.close()
    scene.start_run()
    wait_until("half of the jobs", lambda: len(scene.queue()) >= CELLS // 2, _WITHIN_S)
    faults.kill_all_of_airflow(scene)
    faults.start_again(scene)

    wait_until("the results of the cells that are not held", lambda: len(_results(scene)) == FREE, _WITHIN_S)
    wait_until("a held job on each node", lambda: scene.training.arrived == NODES, _WITHIN_S)
    wait_until("every cell's job", lambda: len(_ledger(scene)) == CELLS, _WITHIN_S)
    site.airflow.mark_run_failed(scene.run)
    scene.ended()
    assert scene.run.state == "failed"
    stopped = _jobs_by_cell(scene)
    scene.training.open()
    assert Counter(map(_states, stopped.values())) == {
        ("COMPLETED",): FREE,
        ("CANCELLED",): HELD,
        ("FAILED",): 1,
    }

    expected = {index: _states(jobs) for index, jobs in stopped.items()}
    for index, ends in ((0, "COMPLETED"), (FAILING, "FAILED"), (CELLS - 1, "COMPLETED")):
        again = site.airflow.steptime("sweep", "again", scene.run.dag_run_id, _cell(scene, index))
        assert again.returncode == 0, again.stderr
        scene.ended()
        expected[index] = (*expected[index], ends)
        assert {index: _states(jobs) for index, jobs in _jobs_by_cell(scene).items()} == expected
        assert scene.run.state == "failed", "other cells have no result"
    assert Counter(_results(scene)) == {0: 2, **dict.fromkeys(range(1, FREE), 1), CELLS - 1: 1}


def test_jobs_wait_for_the_gpus_that_they_may_hold_at_a_time(site):
    scene = _scene(site, "a sweep with few GPUs")
    free = site.gate("never closed").environment
    sweep = {"name": NAME, "cluster": CLUSTER, "gpu_hours_max": 1000}
    cells = [_CELL | {"max_steps": 20 + number, "environment": free} for number in range(6)]
    file = site.config / f"clusters/{CLUSTER}.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"gpus": 2}))
    site.sweep_file.with_stem(NAME).write_text(yaml.safe_dump(sweep | {"runs": cells}))

    scene.start_run()
    scene.ended()

    assert scene.run.state == "success"
    jobs = settled_jobs(scene)
    assert [job.state for job in jobs] == ["COMPLETED"] * 6
    held = [
        sum(other.submitted_at <= job.submitted_at < (other.ended_at or 0) for other in jobs) for job in jobs
    ]
    assert max(held) == 2, "both GPUs were used, and never more"


def _scene(site, name):
    schedule = Schedule(
        seed=0,
        drill=name,
        point=points.TRAINING.name,
        way="steptime up",
        lasts_s=0,
        goes_on_first=False,
        also="",
        step_s=0.1,
    )
    drill = Drill(
        schedule.drill,
        (points.TRAINING,),
        faults.kill_all_of_airflow,
        {},
        dag_id=SWEEP_DAG,
        params={"sweep": NAME},
    )
    return Scene(site, schedule, drill, points.TRAINING)


def _results(scene):
    """Return the map index of each valid result."""
    query = (
        "SELECT map_index FROM runs WHERE dag_run_id = :id AND published_at IS NOT NULL AND state = 'valid'"
    )
    return [index for (index,) in scene.site.store_rows(query, id=scene.run.dag_run_id)]


def _jobs_by_cell(scene):
    """Return the accounting's jobs of each map index, in order of submission; none may be alive."""
    jobs = settled_jobs(scene)
    check_jobs(jobs)
    assert not [job for job in scene.queue() if job.in_queue], "jobs are left in the queue"
    ledger = _ledger(scene)
    assert ledger.keys() == {job.name for job in jobs}, "the ledger and the accounting disagree"
    found = {index: [] for index in range(CELLS)}
    for job in sorted(jobs, key=lambda job: job.submitted_at):
        found[ledger[job.name]].append(job)
    return dict(found)


def _ledger(scene):
    """Return the map index of each job."""
    query = "SELECT name, map_index FROM jobs WHERE dag_run_id = :id"
    return dict(map(tuple, scene.site.store_rows(query, id=scene.run.dag_run_id)))


def _states(jobs):
    return tuple(job.state for job in jobs)


def _cell(scene, index):
    """Return a cell's name in Airflow's grid."""
    return str(scene.known_task(SUBMIT, index).rendered_map_index)
