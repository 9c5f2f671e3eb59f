"""What a sweep has made suspect of being slower is run again by itself, once and within its budget."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from steptime.airflow.sweep.confirming import _gpu_hours
from steptime.airflow.sweep.runs import CONFIRM_TASK, SLOTS_KEY
from steptime.judging.judgements import publish
from steptime.recipes.models import Mode
from steptime.recipes.sweep_planning import Cell
from steptime.results import charges
from steptime.results.store import Store
from tests.airflow.conftest import StateStore

from .conftest import Supervisor, SweepTask
from .test_approval_and_report import report

__all__ = ["report"]  # a fixture

MakeResult = Callable[..., Any]
DAY_S = 86_400.0
USUAL_S, SLOW_S = 0.2, 0.24
PLANNED = (1 + 2) * 600 / 3600
"""GPU-hours of the sweep's cells, of one and of two ranks."""
FRESH = 2 * 2 * 600 / 3600
"""GPU-hours of two fresh runs of two ranks."""


class Scene:
    """A store with eight usual weeks of a cell of two ranks, and a sweep that has run."""

    def __init__(self, make_result: MakeResult, task: Any, make_context: Any) -> None:
        self.make_result, self.task, self.make_context = make_result, task, make_context
        self.kept = StateStore()
        self.pushed: dict[str, Any] = {}
        self.runs = 0
        for _ in range(8):
            self.measure(USUAL_S, run_id="earlier")

    def measure(self, step_time_s: float, *, run_id: str, **options: Any) -> None:
        """Publish a run of two ranks; the next one is a day later."""
        self.runs += 1
        jitter = 1 + 0.002 * (self.runs % 3)
        times = [step_time_s * jitter] * 20
        at = 1.7e9 + self.runs * DAY_S
        result = self.make_result(
            f"job-{self.runs:02}", dag_run_id=run_id, step_times=times, submitted_at=at, **options
        )
        store = Store()
        publish(store, result)

    def confirm(self, checked: Any, started: Sequence[str] = ("one", "two")) -> list[Any]:
        """What the task plans, for a sweep whose cells were started as these DAG runs."""
        xcoms = {
            ("cell.run", index, "started_run"): {"dag_id": "llama31", "run_id": run_id}
            for index, run_id in enumerate(started)
        }
        context = self.make_context() | {"ti": SweepTask(pushed=self.pushed, map_index=-1, xcoms=xcoms)}
        context["task_state_store"] = self.kept
        planned: list[Any] = self.task(CONFIRM_TASK, checked=checked).execute(context)
        return planned


@pytest.fixture
def scene(
    home: Path, make_result: MakeResult, task: Callable[..., Any], make_context: Callable[..., Any]
) -> Scene:
    return Scene(make_result, task, make_context)


def labels(cells: Sequence[dict[str, Any]]) -> list[str]:
    return [cell["label"] for cell in cells]


def test_a_suspected_cell_is_run_twice_again_with_slots_of_its_own(
    check: Callable[..., dict[str, Any]], scene: Scene
) -> None:
    scene.measure(SLOW_S, run_id="two")
    checked = check()

    planned = scene.confirm(checked)

    cell = checked["cells"][1]
    assert labels(planned) == [f"{cell['label']}·fresh 1", f"{cell['label']}·fresh 2"]
    assert [one["repeat"] for one in planned] == [2, 3], "their DAG runs have ids of their own"
    assert all(one["request"] == cell["request"] for one in planned)
    assert scene.pushed[SLOTS_KEY] == [{"pool": "gpus_local", "number": 2}] * 2


def test_nothing_is_run_again_without_a_suspicion_of_this_sweep(
    check: Callable[..., dict[str, Any]], scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.measure(USUAL_S, run_id="two")
    assert scene.confirm(check()) == [], "as usual"
    scene.measure(0.8 * USUAL_S, run_id="two")
    assert scene.confirm(check()) == [], "faster"
    assert scene.confirm(None) == [], "refused"
    assert scene.confirm(check(), started=()) == [], "rejected: nothing was started"
    assert "no fresh runs to add" in capsys.readouterr().out


def test_a_later_run_of_somebody_else_is_not_this_sweeps(
    check: Callable[..., dict[str, Any]], scene: Scene
) -> None:
    scene.measure(USUAL_S, run_id="two")
    scene.measure(SLOW_S, run_id="another")
    assert scene.confirm(check()) == []


def test_what_is_planned_once_is_neither_doubled_nor_forgotten(
    check: Callable[..., dict[str, Any]], scene: Scene
) -> None:
    scene.measure(SLOW_S, run_id="two")
    checked = check()
    planned = scene.confirm(checked)

    assert scene.confirm(checked) == planned, "retried"
    for _ in range(2):
        scene.measure(SLOW_S, run_id="fresh")
    assert scene.confirm(checked) == planned, "cleared, once it is decided"


def test_a_repeat_that_ran_counts_as_fresh(check: Callable[..., dict[str, Any]], scene: Scene) -> None:
    scene.measure(SLOW_S, run_id="two")
    scene.measure(SLOW_S, run_id="two again")
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2}], repeats=2)

    assert [one["repeat"] for one in scene.confirm(checked, ("two", "two again"))] == [3]


def test_only_what_is_suspected_is_run(check: Callable[..., dict[str, Any]], scene: Scene) -> None:
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2, "checkpoint": True}])
    scene.measure(SLOW_S, run_id="two")

    planned = scene.confirm(checked, ["two"])

    assert checked["cells"][0]["jobs"] == 3
    assert [one["jobs"] for one in planned] == [1, 1], "not its checkpoint"


def test_a_checkpoint_that_got_slower_is_saved_again(
    check: Callable[..., dict[str, Any]], scene: Scene
) -> None:
    measurement = scene.make_result(mode=Mode.CHECKPOINT_SAVE).measurement
    for week, seconds in enumerate([1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.5]):
        scene.measure(
            USUAL_S,
            run_id="two" if week == 7 else "earlier",
            mode=Mode.CHECKPOINT_SAVE,
            measurement=measurement.model_copy(update={"checkpoint_save_s": seconds}),
        )
    checked = check(runs=[{"workload": "llama3.1", "gpus": 2, "checkpoint": True}])

    assert [one["jobs"] for one in scene.confirm(checked, ["two"])] == [3, 3]

    scene.kept = StateStore()
    scene.measure(SLOW_S, run_id="two")
    assert [one["jobs"] for one in scene.confirm(checked, ["two"])] == [3, 3], "with what else is suspected"


def test_a_sweep_may_want_no_fresh_runs(
    check: Callable[..., dict[str, Any]], scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.measure(SLOW_S, run_id="two")

    assert scene.confirm(check(confirm=False)) == []
    assert "no fresh runs: the sweep's file has 'confirm: false'" in capsys.readouterr().out
    before = check()
    del before["confirm_up_to_gpu_hours"]
    assert scene.confirm(before) == [], "planned by a steptime that knew of none"


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        ({"gpu_hours_max": PLANNED + FRESH - 0.1}, 2),  # the cell of two ranks took less than it might have
        ({"gpu_hours_max": PLANNED}, 0),
        ({"gpu_hours_max": 10, "approval_above_gpu_hours": PLANNED}, 0),  # nobody was asked
        ({"gpu_hours_max": 10, "approval_above_gpu_hours": PLANNED - 0.1}, 2),  # somebody was
    ],
)
def test_fresh_runs_take_no_more_than_the_sweep_has_left(
    check: Callable[..., dict[str, Any]],
    scene: Scene,
    fields: dict[str, float],
    number: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene.measure(SLOW_S, run_id="two")

    assert len(scene.confirm(check(**fields))) == number
    refused = re.search(
        r"may take 0\.67 GPU-hours, of which the sweep has 0\.\d\d left: none is started",
        capsys.readouterr().out,
    )
    assert bool(refused) == (number == 0)


def test_a_cell_takes_what_its_jobs_took_once_all_of_them_are_known(
    check: Callable[..., dict[str, Any]],
) -> None:
    cell = Cell.model_validate(check()["cells"][1]).model_copy(update={"jobs": 2})

    def hours(*taken: float | None) -> float:
        return _gpu_hours(cell, [{"gpu_hours": one} for one in taken])

    assert hours(0.25, 0.5) == 0.75
    assert [hours(0.25), hours(0.25, None), hours()] == [cell.gpu_hours_max] * 3


def test_the_clusters_budget_may_refuse_them_and_the_sweep_goes_on(
    check: Callable[..., dict[str, Any]],
    scene: Scene,
    budget: Callable[[float], Path],
    airflow_runs: Supervisor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene.measure(SLOW_S, run_id="two")
    budget(PLANNED + 0.1)
    checked = check()

    assert scene.confirm(checked) == []
    assert re.search(r"no fresh run is started: .*0\.67 are asked for", capsys.readouterr().out)

    budget(10)
    assert len(scene.confirm(checked)) == 2, "cleared, once there is room"
    [balance] = charges.budget_balances(["local"])
    assert balance.committed_gpu_hours == pytest.approx(FRESH)


def test_the_report_has_the_fresh_runs_too(
    check: Callable[..., dict[str, Any]],
    scene: Scene,
    report: Callable[..., Any],
    airflow_runs: Supervisor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene.measure(SLOW_S, run_id="two")
    checked = check()
    xcoms: dict[Any, Any] = {(CONFIRM_TASK, None, "return_value"): scene.confirm(checked)}
    for group, ids in (("cell.run", ("one", "two")), ("fresh.run", ("three", "four"))):
        for index, run_id in enumerate(ids):
            xcoms[group, index, "started_run"] = {"dag_id": "llama31", "run_id": run_id}
            airflow_runs.runs["llama31", run_id] = "success"

    report(xcoms, checked)

    told = capsys.readouterr().out
    assert re.search(r"llama3\.1·tiny·fp32·2·fresh 2 +success .* llama31 four", told)
    assert "all 4 cells have valid results" in told
