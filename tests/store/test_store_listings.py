"""The store's lists of many runs, and the part that a reader of some DAGs sees."""

import pytest
import stored
from sqlalchemy import select

from steptime.errors import UserError
from steptime.judging.judgements import judge_all
from steptime.judging.run_findings import add_verdicts, results_with_verdicts
from steptime.recipes.models import Mode
from steptime.store import judgement_queries, schema
from steptime.store import run_queries as module
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

BAD = Verdict(checks=(Check(name="x", passed=False, message="Expected one thing, but found another."),))


@pytest.fixture
def make(make_result):
    """Return a function that makes a run of a DAG run, or of a cell of a sweep."""

    def run(name, dag="steptime_llama3.1-25.04", dag_run="r", **options):
        of_dag_run = {"dag_id": dag, "dag_run_id": dag_run, "sweep": options.pop("sweep", None)}
        ours = make_result("x").submitted.provenance.model_copy(update=of_dag_run)
        return make_result(name, provenance=ours, **options)

    return run


@pytest.fixture
def store(tmp_path, make):
    """Return a store of two DAG runs, a sweep of two scales, a save, a rejected run, and another DAG."""
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    for result in (
        make("one-1", dag_run="one", gpus=1, submitted_at=1e9),
        make("one-2", dag_run="one", gpus=2, submitted_at=1e9 + 1),
        make("two-2", dag_run="two", gpus=2, submitted_at=1e9 + 2),
        make("cell-1", "weekly", "w", gpus=1, sweep="s", submitted_at=1e9 + 3),
        make("cell-4", "weekly", "w", gpus=4, sweep="s", submitted_at=1e9 + 9),
        make("save", dag_run="two", gpus=4, mode=Mode.CHECKPOINT_SAVE, submitted_at=1e9 + 5),
        make("bad", dag_run="two", gpus=8, verdict=BAD, submitted_at=1e9 + 6),
        make("secret-1", "secret", "s", gpus=1, size="small", submitted_at=1e9 + 7),
        make("secret-2", "secret", "s", gpus=2, size="small", submitted_at=1e9 + 8),
    ):
        stored.write(store, result)
    return store


def of_reader(store, *dags):
    return Store(store.url, dags=dags)


@pytest.mark.long
def test_runs_measured_together_have_several_scales(store):
    listed = store.measured_together(limit=10)
    assert [(row["together"], row["submitted_at"], row["runs"]) for row in listed] == [
        *(("weekly/w", 1e9 + 9, 2), ("secret/s", 1e9 + 8, 2), ("steptime_llama3.1-25.04/one", 1e9 + 1, 2)),
    ]
    assert [row["together"] for row in store.measured_together(limit=1)] == ["weekly/w"]
    seen = of_reader(store, "steptime_llama3.1-25.04", "weekly").measured_together(limit=10)
    assert [row["together"] for row in seen] == ["weekly/w", "steptime_llama3.1-25.04/one"]


@pytest.mark.long
def test_series_with_runs_that_a_reader_may_not_read_are_known(store):
    def hidden(*dags):
        return {(row["size"], row["gpus"]) for row in judgement_queries.hidden(of_reader(store, *dags))}

    assert judgement_queries.hidden(store) == []
    assert hidden("steptime_llama3.1-25.04", "weekly") == {("small", 1), ("small", 2)}
    assert hidden("secret") == {("tiny", 1), ("tiny", 2), ("tiny", 4)}
    assert hidden("secret", "steptime_llama3.1-25.04", "weekly", "another") == set()


def test_what_is_selected_by_tells_nothing_of_runs_that_a_reader_may_not_read(store, make):
    ours = make("x", "secret").submitted.provenance.model_copy(update={"sweep": "of nobody's concern"})
    stored.write(
        store, make("secret-3", submitted=make("secret-3").submitted.model_copy(update={"provenance": ours}))
    )
    assert store.choices()["sweep"] == ["of nobody's concern", "s"]
    seen = of_reader(store, "steptime_llama3.1-25.04", "weekly").choices()
    assert (seen["sweep"], seen["size"]) == (["s"], ["tiny"])


@pytest.mark.long
def test_the_newest_run_of_a_sweep_counts_if_it_was_rejected(store, make):
    assert [row["job_name"] for row in store.newest_sweep_run("s")] == ["cell-1", "cell-4"]
    assert store.newest_sweep_run("another") == []
    bad = make("cell-8", "bad", "c", gpus=8, sweep="s", verdict=BAD, submitted_at=1e9 + 10)
    stored.write(store, bad)
    assert [row["job_name"] for row in store.newest_sweep_run("s")] == ["cell-8"], "rejected, and the newest"
    store.require("dag_id", "bad", "a DAG with nothing but rejected runs")


@pytest.mark.long
def test_a_value_that_no_run_has_is_answered_with_the_nearest(store):
    store.require("dag_id", "secret", "the DAG 'secret'")
    with pytest.raises(
        UserError,
        match=r"there are no results of the DAG 'steptime_lama3.1-25.04'.*'steptime_llama3.1-25.04'",
    ):
        store.require("dag_id", "steptime_lama3.1-25.04", "the DAG 'steptime_lama3.1-25.04'")
    with pytest.raises(UserError, match="there are no results of it"):
        of_reader(store, "steptime_llama3.1-25.04", "weekly").require("dag_id", "secret", "it")


@pytest.mark.parametrize("at_once", [1, 3])
def test_steps_and_records_of_many_runs_are_asked_for_a_few_at_a_time(store, monkeypatch, at_once):
    monkeypatch.setattr(module, "NAMES_AT_ONCE", at_once)
    names = ["one-1", "bad", "secret-1", "nobody"]
    times = store.step_times(names)
    assert times.keys() == {"one-1", "bad", "secret-1"}
    assert times["one-1"] == {
        step["global_step"]: step["step_time_s"] for step in store.steps("one-1") if step["step_time_s"]
    }
    records = store.records(names)
    assert records == {name: store.record(name)["content"] for name in names[:3]}
    seen = of_reader(store, "steptime_llama3.1-25.04", "weekly")
    assert seen.step_times(names).keys() == seen.records(names).keys() == {"one-1", "bad"}
    assert store.step_times([]) == store.records([]) == {}
    rows = store.read_each(names, select(schema.runs.c.job_name))
    assert sorted(name for (name,) in rows) == sorted(names[:3]), "each once"


def test_runs_of_a_dag_run_come_in_the_order_of_their_tasks(tmp_path, make):
    """Runs of tasks that were not mapped come last; runs of one task are in order of submission."""
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    for name, map_index, at in (
        ("a", None, 1.0),
        ("b", 1, 9.0),
        ("c", 0, 3.0),
        ("d", 0, 2.0),
        ("e", None, 0.5),
    ):
        made = make(name, submitted_at=1e9 + at)
        ours = made.submitted.provenance.model_copy(update={"map_index": map_index})
        stored.write(
            store,
            make(
                name, submitted_at=1e9 + at, submitted=made.submitted.model_copy(update={"provenance": ours})
            ),
        )
    assert [row["job_name"] for row in store.list_runs("steptime_llama3.1-25.04", "r")] == [
        "d",
        "c",
        "b",
        "e",
        "a",
    ]
    assert store.list_runs("steptime_llama3.1-25.04", "another") == store.list_runs("another", "r") == []


def test_many_runs_are_read_in_parts_each_with_the_verdict_that_it_has_alone(tmp_path, make, monkeypatch):
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    for number in range(14):
        step_time_s = (0.2, 0.201, 0.199)[number % 3] * (1.5 if number == 13 else 1)
        times = [step_time_s] * 20
        stored.write(
            store,
            make(f"run-{number}", gpus=1 + number % 2, submitted_at=1e9 + number * 86_400, step_times=times),
        )
    judge_all(store)
    selected = {"in_reading_order": True, "limit": 8}
    whole = add_verdicts(store, store.results(**selected))
    monkeypatch.setattr(module, "_PART", 3)
    monkeypatch.setattr(module, "NAMES_AT_ONCE", 2)
    assert [len(part) for part in store.results_in_parts(**selected)] == [3, 3, 2]
    assert list(results_with_verdicts(store, **selected)) == whole
    assert len({row["verdict"] for row in whole}) > 1
