"""What tasks of sweeps and trials decide at their limits, and both sides of each condition."""

from types import SimpleNamespace

import pytest

from steptime.airflow.sweep import confirming, operators, trial_operators
from steptime.recipes.models import Mode

FIRST, LAST = "performance.submit", "performance.publish"


def states(*runs):
    """Return the states of runs given as `first task/last task`; `-` for a task that has not begun."""
    told = {}
    for index, run in enumerate(runs):
        first, last = run.split("/")
        told |= {f"{FIRST}_{index}": None if first == "-" else first}
        told |= {f"{LAST}_{index}": None if last == "-" else last}
    return told


@pytest.mark.parametrize(
    ("runs", "count", "over", "stopped", "round_skipped"),
    [
        ("", 0, True, False, False),
        ("success/success", 1, True, False, False),
        ("failed/upstream_failed", 1, True, False, False),
        ("success/failed success/success", 2, True, False, False),
        ("success/running success/success", 2, False, False, False),
        ("success/success success/running", 2, False, False, False),
        ("success/success success/running", 1, True, False, False),
        ("-/-", 1, False, False, False),
        ("success/up_for_retry success/success", 2, False, False, False),
        # skipped by itself, with its run; or by a person, without it
        ("skipped/skipped", 1, True, False, False),
        ("success/skipped", 1, True, True, False),
        ("success/success success/skipped", 2, True, True, False),
        ("success/success success/skipped", 1, True, False, False),
        ("-/skipped", 1, True, True, False),
        # rounds of two variants
        ("skipped/- skipped/-", 2, False, False, True),
        ("skipped/- success/-", 2, False, False, False),
        ("success/- skipped/-", 2, False, False, False),
        ("success/- skipped/- skipped/- success/-", 4, False, False, False),
        ("success/- success/- skipped/- skipped/-", 4, False, False, True),
        ("success/- success/- skipped/- skipped/-", 3, False, False, False),
    ],
)
def test_where_the_runs_before_stand(runs, count, over, stopped, round_skipped):
    told = states(*runs.split())
    assert (
        trial_operators._are_over(told, LAST, count),
        trial_operators._is_stopped(told, LAST, count),
        trial_operators._has_skipped_round(told, LAST, count, 2),
    ) == (over, stopped, round_skipped)


def test_a_run_goes_to_the_nodes_of_the_first_run_of_its_round():
    def run(number, position, *nodes):
        return SimpleNamespace(round=number, position=position, nodes=nodes)

    runs = [run(1, 0, "n1"), run(2, 2), run(2, 3, "n3", "n4"), run(2, 4, "n5"), run(3, 6, "n6")]
    found = {
        index: trial_operators._nodes_of_round(runs, SimpleNamespace(round=number, index=index))  # type: ignore[arg-type]
        for number, index in ((1, 0), (1, 1), (2, 2), (2, 3), (2, 4), (2, 5), (3, 7), (4, 9))
    }
    assert found == {0: (), 1: ("n1",), 2: (), 3: (), 4: ("n3", "n4"), 5: ("n3", "n4"), 7: ("n6",), 9: ()}


@pytest.mark.parametrize(
    ("hours", "jobs", "expected"),
    [
        ([0.5], 1, 0.5),
        ([0.5, 1.25], 2, 1.75),
        ([], 1, 9.0),
        ([0.5], 2, 9.0),
        ([0.5, None], 2, 9.0),
        ([0.5, 1.25], 1, 9.0),
        ([2048 * 24.0], 1, 49152.0),
    ],
)
def test_a_cell_counts_by_what_it_took_or_at_most(hours, jobs, expected):
    cell = SimpleNamespace(jobs=jobs, gpu_hours_max=9.0)
    assert confirming._gpu_hours(cell, [{"gpu_hours": each} for each in hours]) == expected


@pytest.mark.parametrize(("rows", "tail"), [(1, ""), (50, ""), (51, "and 1 more."), (1000, "and 950 more.")])
def test_a_request_for_approval_shows_fifty_cells(rows, tail):
    text = operators._markdown(
        [{"cell": f"c{at}", "GPUs": 8, "≤": 1e4 / 3, "expected": None} for at in range(rows)]
    )
    lines = text.splitlines()
    assert lines[:3] == [
        "| cell | GPUs | ≤ | expected |",
        "| --- | --- | --- | --- |",
        "| c0 | 8 | 3,333.33 | unknown |",
    ]
    assert len([line for line in lines if line.startswith("| c")]) == 1 + min(rows, 50)
    assert (lines[-1] if tail else "") == tail


@pytest.mark.parametrize(
    ("stored", "result", "job"),
    [
        ("", "none", None),
        ("performance=valid:0.5", "none", "performance-1"),
        ("performance=valid save=valid load=valid", "valid", "performance-1"),
        ("performance=rejected save=valid load=valid", "rejected", "performance-1"),
        ("performance=valid save=rejected load=valid", "rejected", "performance-1"),
        ("performance=valid save=valid load=measured", "measured", "performance-1"),
        ("performance=valid save=valid", "none", "performance-1"),
        ("save=valid load=valid", "none", None),
        ("performance=rejected save=valid load=valid performance=valid", "valid", "performance-4"),
        ("performance=valid save=valid load=valid performance=rejected", "rejected", "performance-4"),
    ],
)
def test_a_cell_is_valid_if_all_of_its_newest_runs_are(monkeypatch, stored, result, job):
    modes = {"performance": Mode.PERFORMANCE, "save": Mode.CHECKPOINT_SAVE, "load": Mode.CHECKPOINT_LOAD}
    runs = [SimpleNamespace(mode=mode) for mode in modes.values()]
    monkeypatch.setattr(operators, "expand_cell", lambda cell: runs)
    rows = []
    for number, each in enumerate(stored.split(), 1):
        name, state = each.partition(":")[0].split("=")
        numbers = {"step_time_mean_s": 0.5, "tokens_per_s": 1e13, "mfu_percent": 41.0, "queue_wait_s": 7.0}
        rows.append({"mode": modes[name], "state": state, "job_name": f"{name}-{number}", **numbers})
    cell = SimpleNamespace(label="a cell")
    known = {"step time, s": 0.5, "tokens/s": 1e13, "MFU, %": 41.0, "queued, s": 7.0}
    numbers = known if job else dict.fromkeys(known)
    assert operators._row(cell, rows) == {"cell": "a cell", "result": result, **numbers, "job": job}
