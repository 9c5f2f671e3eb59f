"""Series: which runs belong together, which of their numbers are judged, and which changes are events."""

import pytest
import stored

from steptime.judging.comparison import compare_since
from steptime.judging.series import Series, series_runs
from steptime.recipes.models import Mode


def history(store, series):
    return series_runs(store.results(**series.key)[::-1])


def test_a_stored_run_and_its_plan_are_of_one_series(store, make_result):
    result = make_result(gpus=4, tensor=2)
    stored.write(store, result)

    series = Series.from_row(store.run(result.job.name))

    assert series == Series.from_run(result.run)
    assert series.label == result.run.label
    assert Series.from_row(series.key | {"mode": "checkpoint_save"}).label == "tiny·fp32·4·checkpoint save"


def test_what_was_asked_for_makes_a_series_and_nothing_else_does(store, make_result):
    one = make_result("one")
    moved = one.run.model_copy(update={"seed": 99, "repeat": 2, "environment": {"OMP_NUM_THREADS": "4"}})
    stored.write(store, one)
    stored.write(store, make_result("two", run=moved))
    series = Series.from_run(one.run)

    assert [run.job_name for run in history(store, series)] == ["one", "two"]
    for name, value in series.key.items():
        other = not value if isinstance(value, bool) else f"other{value}"
        differs = Series.from_row(series.key | {name: other})
        assert series.differences(differs) == [f"{name.replace('_', ' ')} {value} and {other}"]


def spread_over_experts(run, ranks):
    spread = run.recipe.parallelism.model_copy(update={"expert": ranks})
    return run.model_copy(update={"recipe": run.recipe.model_copy(update={"parallelism": spread})})


def test_expert_parallelism_makes_a_series_only_where_there_is_some(store, make_result):
    dense = make_result("dense")
    for name, ranks in (("one", 1), ("two", 2)):
        stored.write(store, make_result(name, run=spread_over_experts(dense.run, ranks)))
    stored.write(store, dense)

    series, other = Series.from_run(dense.run), Series.from_run(spread_over_experts(dense.run, 2))

    assert {run.job_name for run in history(store, series)} == {"dense", "one"}
    assert [run.job_name for run in history(store, other)] == ["two"]
    assert "tp/pp/cp/dp 1/1/1/2, cpu" in series.full_name
    assert "tp/pp/cp/dp/ep 1/1/1/2/2, cpu" in other.full_name


def test_a_run_is_judged_by_its_steady_steps(store, make_result):
    slow_start = [9.0] * 30 + [0.2] * 9 + [0.3] * 11
    result = make_result(max_steps=50, step_times=slow_start)
    stored.write(store, result)

    (run,) = history(store, Series.from_run(result.run))

    assert run.seconds == 0.3, "its documented number is the mean of 25:49"
    assert run.judged_on == "median of steps 25 to 49"


def test_a_run_without_steps_is_judged_by_its_documented_number(store, make_result):
    result = make_result()
    assert result.measurement is not None
    measured = result.measurement.model_copy(update={"steady_steps": None, "steady_step_time_s": None})
    stored.write(store, result.model_copy(update={"measurement": measured}))

    (run,) = history(store, Series.from_run(result.run))

    assert (run.seconds, run.judged_on) == (result.measurement.step_time_mean_s, "step_time_mean_s")


@pytest.mark.parametrize("blocked", [True, False])
def test_checkpoints_are_judged_by_their_own_seconds(store, make_result, *, blocked):
    """A save is judged by the seconds that training waited, if its log has them, as documents print these."""
    column = "checkpoint_blocked_s" if blocked else "checkpoint_save_s"
    for number in range(9):
        saved = make_result(f"save-{number}", mode=Mode.CHECKPOINT_SAVE, submitted_at=1e9 + number)
        seconds = {"checkpoint_save_s": 9.0, "checkpoint_blocked_s": None}
        seconds[column] = 1.5 if number > 5 else 1.0
        measured = saved.measurement.model_copy(update=seconds | {"step_time_over_published": 0.99})
        stored.write(store, saved.model_copy(update={"measurement": measured}))
    stored.write(store, make_result("loaded", mode=Mode.CHECKPOINT_LOAD))

    found = compare_since(store, 0)

    rows = {row["mode"]: row for row in found.rows}
    assert rows["checkpoint_save"]["verdict"] == "slower"
    assert rows["checkpoint_save"]["judged_on"] == column
    assert rows["checkpoint_save"]["judged_s"] == 1.5
    both = (rows["checkpoint_save"]["checkpoint_blocked_s"], rows["checkpoint_save"]["checkpoint_save_s"])
    assert both == ((1.5, 9.0) if blocked else (None, 1.5))
    assert rows["checkpoint_save"]["step_time_over_published"] is None, "its steps are not what is judged"
    assert rows["checkpoint_load"]["judged_on"] == "checkpoint_load_s"
    assert rows["checkpoint_load"]["verdict"] == "insufficient history"
