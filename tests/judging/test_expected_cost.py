"""The expected cost of runs: by the history of their series, else by the publication, else unknown."""

import pytest
import stored

from steptime.clusters.base import JobState, JobStatus
from steptime.errors import SystemFailure
from steptime.judging.expected_cost import Source, expected_cost
from steptime.recipes.models import Mode
from steptime.recipes.planning import PlanRequest, plan
from steptime.store.run_queries import Store


def runs_of(**request):
    return plan(PlanRequest.model_validate({"workload": "llama3.1", **request})).all_runs


def keep(store, make_result, name, step_s, around_s):
    """Store a run of 20 steps on one rank, whose job took `around_s` seconds besides them."""
    result = make_result(name, step_times=[step_s] * 20, gpus=1)
    begun = result.job.submitted_at
    status = JobStatus(
        state=JobState.SUCCEEDED, started_at=begun, ended_at=begun + 20 * step_s + around_s, exit_code=0
    )
    stored.write(store, result.model_copy(update={"status": status}))


def test_by_the_history_of_the_series(store, make_result):
    for number, (step_s, around_s) in enumerate([(1.0, 40), (3.0, 60), (2.0, 50)]):
        keep(store, make_result, f"run-{number}", step_s, around_s)

    same = expected_cost(runs_of(gpus="1"), store)
    assert (same.each[0].source, same.each[0].seconds) == (Source.HISTORY, 50 + 2 * 20)
    assert same.sentence == (
        "expected 0.025 GPU-hours, the longest job 00:01:30 (1 by the history of their series)"
    )
    longer = expected_cost(runs_of(gpus="1", max_steps=40), store)
    assert longer.each[0].seconds == 50 + 2 * 40, "its steps take longer, and what is around them does not"
    limited = [
        run
        for limit in ("00:10:00", "00:20:00")
        for run in runs_of(gpus="1", max_steps=4000, time_limit=limit)
    ]
    ends = [one.seconds for one in expected_cost(limited, store).each]
    assert ends == [600, 1200], "then the cluster ends it, each at its own limit"


def test_a_job_takes_no_less_than_its_steps(store, make_result):
    """The clocks of a cluster may differ by more than the time around the steps."""
    keep(store, make_result, "run", 2.0, -5)
    assert expected_cost(runs_of(gpus="1"), store).each[0].seconds == 2 * 20


def test_by_the_publication_where_the_series_has_not_run(store):
    [run] = runs_of(size="8b", gpu_type="h100", gpus="16")
    cost = expected_cost([run], store)

    assert cost.each[0].source is Source.PUBLICATION
    assert cost.each[0].seconds == pytest.approx(50 * 9.81, rel=0.5)
    assert cost.each[0].gpu_hours == pytest.approx(16 * (cost.each[0].seconds or 0) / 3600)
    assert "(1 by the publication, start and end of the job apart)" in cost.sentence
    loading = runs_of(size="8b", gpu_type="h100", gpus="16", checkpoint=True)[-1]
    assert loading.mode is Mode.CHECKPOINT_LOAD
    assert expected_cost([loading], store).each[0].seconds == pytest.approx(
        (cost.each[0].seconds or 0) / 50
    ), "it goes on from the step at which its checkpoint was saved"


def test_without_either_it_says_so(store, make_result):
    assert expected_cost(runs_of(gpus="1"), store).sentence == (
        "no history and no publication: upper bound only"
    )
    keep(store, make_result, "run", 1.0, 10)
    some = expected_cost(runs_of(gpus="1,2"), store)
    assert some.sentence == (
        "expected 0.0083 GPU-hours, the longest job 00:00:30 (1 by the history of their series; 1 left out: "
        "no history and no publication, upper bound only)"
    )


def test_a_store_that_cannot_be_read_is_told_and_nothing_fails(store, monkeypatch):
    def fail(self):
        raise SystemFailure("the metrics store does not answer")

    monkeypatch.setattr(Store, "exists", fail)
    assert expected_cost(runs_of(gpus="1,2"), store).sentence == (
        "no history and no publication: upper bound only "
        "(the history cannot be read: the metrics store does not answer)"
    )
