"""A sweep in a real Airflow: it is stopped half way, and one of its cells is run again."""

import pytest

from end_to_end.conftest import CELLS, HANGING_CELLS
from end_to_end.driving import wait_until
from steptime.store.run_queries import Store

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1800)]

OF_A_CELL = ("submit", "wait", "end", "parse", "validate", "publish")


@pytest.fixture(autouse=True)
def _no_job_is_left(airflow):
    yield
    airflow.cancel_jobs()


def start(airflow, sweep):
    return airflow.client.trigger("steptime_sweep", {"sweep": sweep}, patience_s=60)


def rows_of(airflow, sweep):
    store = Store(f"sqlite:///{airflow.home / 'store' / 'steptime.db'}")
    return store.list_runs(sweep.dag_id, sweep.dag_run_id)


def states(airflow, sweep):
    """Return the state of each task and its number of tries."""
    tasks = airflow.client.task_instances(sweep.dag_id, sweep.dag_run_id)
    return {(task.task_id, task.map_index): (task.state, task.try_number) for task in tasks}


def test_marking_a_sweep_as_failed_ends_its_jobs_and_keeps_its_results(airflow):
    """The cluster runs one job at a time: when the first is published, one hangs and one waits."""
    before = set(airflow.jobs())
    sweep = start(airflow, HANGING_CELLS)

    def is_half_way():
        jobs = set(airflow.jobs()) - before
        return len(jobs) == 3 and bool(rows_of(airflow, sweep))

    wait_until("all cells to be submitted and one to be published", is_half_way, 600)
    airflow.mark_run_failed(sweep)

    assert airflow.ended(sweep).state == "failed"
    jobs = set(airflow.jobs()) - before
    ended = {
        name: wait_until(f"the end of {name}", lambda name=name: airflow.ended_job(name)) for name in jobs
    }
    assert len(jobs) == 3, "nothing more was submitted"
    ends = sorted(end.state for end in ended.values())
    assert set(ends) == {"succeeded", "cancelled"}
    assert states(airflow, sweep)["report", -1][0] == "failed"


def run_again_from_page(airflow, sweep, index):
    from browser import logged_in
    from playwright.sync_api import expect

    (job,) = [row["job_name"] for row in rows_of(airflow, sweep) if row["map_index"] == index]
    with logged_in(airflow.url, airflow.user, airflow.password) as watched:
        watched.page.goto(f"/plugin/step-times/steptime/?view=runs&run={job}")
        frame = watched.page.frame_locator("iframe[title='Step times']")
        frame.get_by_role("button", name="Run this cell again …").click()
        frame.get_by_role("button", name="Run again", exact=True).click()
        expect(frame.locator(".again [role=status]")).to_contain_text(sweep.dag_run_id)


@pytest.mark.browser
@pytest.mark.exhaustive
def test_one_cell_runs_again_from_its_page_and_no_other(airflow):
    before = set(airflow.jobs())
    sweep = airflow.ended(start(airflow, CELLS))
    assert sweep.state == "success"
    trained = states(airflow, sweep)
    first_jobs = set(airflow.jobs()) - before
    assert len(first_jobs) == 2

    run_again_from_page(airflow, sweep, 1)
    assert airflow.ended(sweep).state == "success"

    new = set(airflow.jobs()) - before - first_jobs
    assert len(new) == 1, "a job for this cell, and none for the others"
    rows = rows_of(airflow, sweep)
    assert [row["map_index"] for row in rows if row["job_name"] in new] == [1]
    again = {task for task, seen in states(airflow, sweep).items() if seen != trained[task]}
    expected = {(f"performance.{name}", 1) for name in OF_A_CELL} | {("report", -1)}
    assert expected <= again
    assert again - expected <= {("performance.submit", 0)}, "Airflow clears setups"
