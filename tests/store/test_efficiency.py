"""Scaling efficiency in the store: the runs it is relative to, its certainty, and when it is recomputed."""

import math
import random
import statistics

import pytest
import stored

from steptime.judging.judgements import judge_all
from steptime.recipes.models import Mode
from steptime.store import efficiency, schema
from steptime.store.columns import COMPUTED
from steptime.store.database import write_transaction
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

BAD = Verdict(checks=(Check(name="x", passed=False, message="Expected one thing, but found another."),))
DAY_S = 86_400.0


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return an empty store, which commands read too."""
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    return Store()


@pytest.fixture
def make(make_result):
    """Return a function that makes a run of `rate` times the usual tokens per second and GPU."""

    def run(name, gpus, rate=1.0, *, together="one", **options):
        provenance = make_result("x").submitted.provenance.model_copy(
            update={"sweep": "weekly", "dag_id": "steptime_llama3.1-25.04", "dag_run_id": together}
        )
        given = {"step_times": [1 / rate] * 20, "provenance": provenance, **options}
        return make_result(name, gpus=gpus, **given)

    return run


def of(store):
    """Return each run's efficiency, and the number of GPUs and jobs that it is relative to."""
    names = ("scaling_efficiency_percent", "scaling_base_gpus", "scaling_base_jobs")
    rows = store.results(include_rejected=True)
    by_job = {row["job_name"]: tuple(row[name] for name in names) for row in rows}
    return {
        name: (None if percent is None else round(percent, 6), *base)
        for name, (percent, *base) in by_job.items()
    }


def publish(store, *results):
    for result in results:
        stored.write(store, result)


@pytest.mark.parametrize("seed", range(2))
def test_efficiency_is_relative_to_the_smallest_scale_of_its_sweep_in_whatever_order_runs_end(
    store, make, seed
):
    runs = [
        make("a-1", 1, together="a", submitted_at=1e9),
        make("b-4", 4, 0.8, together="b", submitted_at=2e9),
        make("b-2", 2, 0.9, together="b", submitted_at=2e9 + 1),
        make("b-1", 1, 1.25, together="b", submitted_at=2e9 + 2),
    ]
    random.Random(seed).shuffle(runs)  # noqa: S311 - an order, no secret

    publish(store, *runs)

    assert of(store) == {
        "a-1": (None, None, None),
        "b-1": (100, 1, "b-1"),
        "b-2": (72, 1, "b-1"),
        "b-4": (64, 1, "b-1"),
    }


def test_a_base_that_is_rejected_after_all_counts_no_more(store, make):
    publish(store, make("one", 1), make("two", 2, 0.9), make("four", 4, 0.72))

    stored.write(store, make("one", 1, verdict=BAD))

    assert of(store) == {"one": (None, None, None), "two": (100, 2, "two"), "four": (80, 2, "two")}


def test_repeats_of_the_base_are_averaged(store, make):
    publish(store, make("one-a", 1), make("one-b", 1, 2.0), make("two", 2))

    assert of(store) == {
        "one-a": (pytest.approx(100 * 2 / 3), 1, "one-a, one-b"),
        "one-b": (pytest.approx(100 * 4 / 3), 1, "one-a, one-b"),
        "two": (pytest.approx(100 * 2 / 3), 1, "one-a, one-b"),
    }


def test_a_scale_alone_is_relative_to_the_smallest_of_the_nearest_earlier_runs(store, make):
    """They are the newest with the fewest GPUs in the week that ended with the nearest run of fewer GPUs."""
    days = {"old": 0.0, "monday": 19.0, "tuesday": 20.0, "wednesday": 21.0, "thursday": 22.0, "late": 50.0}
    runs = {
        "old": (1, 9.0),
        "monday": (2, 4.5),
        "tuesday": (2, 2.0),
        "wednesday": (4, 1.8),
        "thursday": (8, 1.6),
        "late": (2, 3.0),
    }
    publish(
        store,
        *(
            make(name, gpus, rate, together=name, submitted_at=1e9 + days[name] * DAY_S)
            for name, (gpus, rate) in runs.items()
        ),
    )

    assert of(store) == {
        "old": (None, None, None),
        "monday": (50, 1, "old"),
        "tuesday": (pytest.approx(100 * 2 / 9), 1, "old"),
        "wednesday": (90, 2, "tuesday"),
        "thursday": (80, 2, "tuesday"),
        "late": (pytest.approx(100 * 3 / 9), 1, "old"),
    }


@pytest.mark.parametrize(
    ("before_s", "base"), [(7 * DAY_S, (1, "smallest")), (7 * DAY_S + 1, (2, "nearest"))]
)
def test_a_run_a_week_before_the_nearest_is_of_its_week(store, make, before_s, base):
    runs = {"smallest": (1, 2.0, 0), "nearest": (2, 2.0, before_s), "alone": (4, 1.0, before_s + 1)}
    publish(
        store,
        *(
            make(name, gpus, rate, together=name, submitted_at=1e9 + after)
            for name, (gpus, rate, after) in runs.items()
        ),
    )

    assert of(store)["alone"] == (50, *base)


@pytest.mark.long
def test_of_an_earlier_sweep_all_repeats_of_its_smallest_scale_count(store, make):
    earlier = [
        make("s-1a", 1, together="s", submitted_at=1e9),
        make("s-2", 2, together="s", submitted_at=1e9 + 1),
        make("s-1b", 1, 3.0, together="s", submitted_at=1e9 + 9),
    ]
    publish(store, make("alone", 4, together="t", submitted_at=1e9 + 5), *earlier)

    assert of(store)["alone"] == (50, 1, "s-1a, s-1b")
    publish(store, make("later", 4, together="u", submitted_at=1e9 + 20))
    assert of(store)["later"] == (50, 1, "s-1a, s-1b")


def test_only_comparable_runs_have_an_efficiency(store, make):
    measured = make("x", 1).measurement
    assert measured is not None
    without_rate = measured.model_copy(update={"tokens_per_s_per_gpu": None})
    publish(
        store,
        make("rejected", 1, verdict=BAD, measurement=None),
        make("save", 1, mode=Mode.CHECKPOINT_SAVE),
        make("save-2", 2, mode=Mode.CHECKPOINT_SAVE),
        make("small", 1, size="small"),
        make("without-a-rate", 1, measurement=without_rate),
        make("two", 2),
    )

    assert set(of(store).values()) == {(None, None, None)}


@pytest.mark.parametrize("name", ["size", "proxy", "tuning", "cluster"])
def test_a_run_that_differs_in_anything_but_its_gpus_is_of_another_family(store, make, name):
    run = make("two", 2).run
    other = {name: True if name == "proxy" else "another"}
    if name not in ("cluster", "tuning"):
        other = {"recipe": run.recipe.model_copy(update=other)}
    publish(store, make("one", 1), make("two", 2, run=run.model_copy(update=other)))

    assert set(of(store).values()) == {(None, None, None)}


def test_a_run_of_no_dag_and_no_sweep_is_by_itself(store, make):
    of_nobody = make("x", 1).submitted.provenance.model_copy(
        update=dict.fromkeys(("dag_id", "dag_run_id", "sweep"))
    )
    for number, gpus in enumerate((1, 2)):
        publish(store, make(f"of-{gpus}", gpus, 1 / gpus, provenance=of_nobody, submitted_at=1e9 + number))
    assert of(store) == {"of-1": (None, None, None), "of-2": (50, 1, "of-1")}


def test_what_its_reader_may_not_read_is_no_base(store, make):
    """A reader sees whole DAGs, so a run and its base are of the same DAG."""
    on_one_gpu = make("one", 1)
    secret = on_one_gpu.submitted.provenance.model_copy(update={"dag_id": "secret"})
    publish(store, make("one", 1, provenance=secret), make("two", 2, 0.9), make("four", 4, 0.72))

    assert of(store)["four"] == (80, 2, "two")


def test_with_fewer_than_three_repeats_there_is_no_interval(store, make):
    publish(store, *(make(f"one-{number}", 1, 1 + number / 10) for number in range(4)))
    publish(store, make("two-a", 2), make("two-b", 2, 1.1))

    assert {row["scaling_efficiency_low_percent"] for row in store.results()} == {None}


@pytest.mark.long
def test_repeats_of_both_scales_give_an_interval_of_the_scale(store, make):
    rates = (0.99, 1.0, 1.01, 1.0, 0.995)
    publish(store, *(make(f"one-{number}", 1, rate) for number, rate in enumerate(rates)))
    publish(store, *(make(f"two-{number}", 2, 0.9 * rate) for number, rate in enumerate(rates)))

    rows = [row for row in store.results() if row["gpus"] == 2]

    ((low, high),) = {
        (row["scaling_efficiency_low_percent"], row["scaling_efficiency_high_percent"]) for row in rows
    }
    assert 88 < low < 90 < high < 92
    assert {row["scaling_efficiency_low_percent"] for row in store.results() if row["gpus"] == 1} == {None}


WAYS = ("tensor_parallel", "pipeline_parallel", "context_parallel", "data_parallel")
SPREAD = {**dict.fromkeys(WAYS, 1), "expert_parallel": 1, "global_batch_size": 8, "micro_batch_size": 1}


def measured(number, rate, **spread):
    """Return a run of one sweep as the store has it."""
    times = SPREAD | spread
    return {
        **{"id": number, "job_name": f"job-{number}", "submitted_at": float(number)},
        **{"dag_run_id": "r", "tokens_per_s_per_gpu": rate, "state": "valid"},
        **times,
        "gpus": math.prod(times[way] for way in WAYS),
    }


def test_runs_that_are_spread_otherwise_are_no_repeats():
    base = [measured(number, rate) for number, rate in enumerate((1.0, 1.01, 0.99))]
    for name in SPREAD:
        of_all = [measured(number, 0.9, data_parallel=2) for number in (3, 4, 5)]
        computed = efficiency.efficiencies([*base, *of_all])
        assert computed[5]["scaling_efficiency_low_percent"] is not None
        other = measured(5, 0.9, **{"data_parallel": 2, name: 4})
        computed = efficiency.efficiencies([*base, *of_all[:2], other])
        lows = [computed[number]["scaling_efficiency_low_percent"] for number in (3, 4, 5)]
        assert lows == [None, None, None], f"two and one of them are equal, but for {name}"


def test_runs_of_one_dag_run_are_measured_together_without_a_sweep():
    on_two_gpus, on_one_gpu = (measured(number, 1.0, data_parallel=2 - number) for number in (0, 1))
    assert efficiency.efficiencies([on_two_gpus, on_one_gpu])[0]["scaling_base_jobs"] == "job-1", (
        "though that came later"
    )
    of_another = on_one_gpu | {"dag_run_id": "another"}
    assert efficiency.efficiencies([on_two_gpus, of_another]) == {}


def test_an_interval_is_that_of_students_t_where_rates_are_spread_normally():
    """Eight jobs are compared with a base without spread; the interval is wide because eight are few."""
    rates = [90 + 20 * statistics.NormalDist().inv_cdf((number + 0.5) / 8) for number in range(8)]

    low, high = efficiency.interval(rates, [100.0] * 8)

    half = 2.3646 * statistics.stdev(rates) / math.sqrt(8)  # Student's t with 7 degrees of freedom, for 95 %
    expected = (statistics.fmean(rates) - half, statistics.fmean(rates) + half)
    assert (low, high) == pytest.approx(expected, rel=0.02)


def test_judging_all_of_a_store_computes_it(store, make):
    publish(store, make("one", 1), make("two", 2, 0.9), make("two-b", 2, 0.9), make("one-b", 1))
    kept = {row["job_name"]: {name: row[name] for name in COMPUTED} for row in store.results()}
    with write_transaction(store.url) as connection:
        connection.execute(schema.runs.update().values(dict.fromkeys(COMPUTED)))
    assert of(store)["two"] == (None, None, None)

    judge_all(store)

    assert {row["job_name"]: {name: row[name] for name in COMPUTED} for row in store.results()} == kept
