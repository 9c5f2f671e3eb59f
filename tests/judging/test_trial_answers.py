"""What a trial says by the runs in the store, and that its runs and a weekly cell's are judged apart."""

import json

import pytest
from called import steptime
from stored import publish
from stored_trial import DAG_RUN, OUT_OF_MEMORY, RULES, VARIANTS, StoredTrial, run_rounds

from steptime.clusters.base import JobState, JobStatus
from steptime.durations import WEEK_S
from steptime.errors import UserError
from steptime.judging.comparison import finding_of_run
from steptime.judging.trial_answers import (
    RoundRun,
    TrialAnswer,
    known_noise_percent,
    newest_trial,
    round_runs,
)
from steptime.judging.trials import Observation, decide
from steptime.recipes.models import TrialPosition
from steptime.store.run_models import Check, Verdict
from tests.store.conftest import ledger_job

__all__ = ["ledger_job"]  # a fixture


@pytest.fixture
def trial(store, make_result):
    return StoredTrial(store, make_result)


def test_the_answer_names_what_is_slower_by_how_much_and_what_cannot_run(trial):
    run_rounds(trial, {"default": 0.2, "ring": 0.21, "broken": None}, 4)
    answer = trial.answer()
    assert (answer.state.ended, answer.state.reason, answer.state.best) == (True, "one left", "default")
    assert answer.sentence.startswith("`ring` is 4.8 % slower than `default` (")
    assert f"after {answer.state.round} rounds, " in answer.sentence
    assert f"`broken` cannot run: {OUT_OF_MEMORY}." in answer.sentence
    rows = {row["variant"]: row for row in answer.rows}
    assert rows["ring"]["low_percent"] < 5 < rows["ring"]["high_percent"]
    assert rows["broken"]["cause"] == OUT_OF_MEMORY
    assert rows["tensor_parallel=3"]["status"] == "left out"
    assert set(rows) == {*VARIANTS, "tensor_parallel=3"}


def test_a_known_best_and_what_was_set_aside_are_told():
    times = {f"v{number}": 10 + number / 100 + 5 * (number == 12) for number in range(13)}
    rules = RULES.model_copy(update={"variants": tuple(times), "stop_when": "best known"})
    state = decide(
        rules.variants,
        [Observation(name, number, time) for number in range(1, 17) for name, time in times.items()],
        least_difference_percent=1,
        known_noise_percent=0.3,
        stop_when="best known",
    )
    sentence = TrialAnswer(rules, state, ()).sentence
    assert "`v0` is slower than none that is left by more than 1 %, after " in sentence
    assert "`v12` was set aside after one run, 51 % slower in it (not tested)." in sentence


@pytest.mark.parametrize(
    ("times", "rounds", "options", "sentence"),
    [
        (
            (10, 10.01, 10.02),
            8,
            {},
            "`v0`, `v1` and `v2` are within 0.8 % of each other, after 4 rounds, 24.00 GPU-hours.",
        ),
        (
            (10, 10.4, 13, 10.01),
            8,
            {},
            "`v1` is 4.0 % slower than `v0` (2.1 to 5.9 %); "
            "`v2` is 30.0 % slower than `v0` (27.6 to 32.4 %); "
            "`v0` and `v3` are within 1.0 % of each other, after 4 rounds, 32.00 GPU-hours.",
        ),
        (
            (10.2, 10),
            2,
            {},
            "Nothing is shown yet after 2 rounds, 4.00 GPU-hours. Open: `v0` against `v1` (−0.2 to 4.3 %). "
            "The answer is not known yet.",
        ),
        (
            (10, 10.05),
            2,
            {"known_noise_percent": 2, "rounds_max": 2},
            "Nothing is shown after 2 rounds, 4.00 GPU-hours. Open: `v1` against `v0` (−5.6 to 5.9 %). "
            "It ended by its rounds_max. Some 180 further runs should decide it.",
        ),
        (
            (10, 10.05),
            2,
            {"known_noise_percent": 2, "budget_used_up": True},
            "Nothing is shown after 2 rounds, 4.00 GPU-hours. Open: `v1` against `v0` (−8.9 to 10.7 %). "
            "It ended by its gpu_hours_max. Some 268 further runs should decide it.",
        ),
        (
            (10, OUT_OF_MEMORY),
            1,
            {},
            f"only `v0` is left, in the first round, 2.00 GPU-hours. `v1` cannot run: {OUT_OF_MEMORY}.",
        ),
        (
            (None, None),
            1,
            {},
            "Nothing is shown yet after 1 round, 2.00 GPU-hours. The answer is not known yet.",
        ),
    ],
)
def test_the_whole_answer_is_told(times, rounds, options, sentence):
    """Each run takes an hour of one GPU; a text is why a variant cannot run."""
    names = tuple(f"v{number}" for number in range(len(times)))
    observed = [
        Observation(name, number, None, time) if isinstance(time, str) else Observation(name, number, time)
        for number in range(1, rounds + 1)
        for name, time in zip(names, times, strict=True)
    ]
    state = decide(names, observed, **{"least_difference_percent": 1, "known_noise_percent": 0.3} | options)
    runs = tuple(RoundRun(seen.variant, seen.round, 0, None, None, 1.0, ()) for seen in observed)
    rules = RULES.model_copy(update={"variants": names})
    assert TrialAnswer(rules, state, runs).sentence == sentence


def test_a_round_is_decided_by_the_rounds_before_it_only(trial):
    run_rounds(trial, {"default": 0.2, "ring": 0.21, "broken": None}, 4)
    assert trial.answer(complete=0).state.still_in == VARIANTS
    assert trial.answer(complete=1).state.still_in == ("default", "ring")
    before = trial.answer(complete=2).state
    trial.ran("ring", 9, 0.1)
    assert trial.answer(complete=2).state == before


def test_a_run_that_the_cluster_failed_is_no_verdict_on_its_variant(trial):
    lost = JobStatus(state=JobState.FAILED, cluster_fault=True)
    bad = Verdict(checks=(Check(name="job_succeeded", passed=False, message="node3 died."),))
    trial.ran("ring", 1, 0.2, status=lost, verdict=bad)
    trial.ran("default", 1, 0.2)
    trial.ran("broken", 1, 0.2)
    assert trial.answer(complete=1).state.still_in == VARIANTS


def test_no_round_starts_that_could_exceed_the_gpu_hours(store, make_result):
    """The three runs of a round may take 3 GPU-hours, and take 60 s of 2 GPUs each."""
    trial = StoredTrial(store, make_result, RULES.model_copy(update={"gpu_hours_max": 3.05}))
    run_rounds(trial, dict.fromkeys(VARIANTS, 0.2), 1)
    answer = trial.answer()
    assert answer.gpu_hours > 0.05
    assert (answer.state.ended, answer.state.reason) == (True, "budget used up")
    assert "It ended by its gpu_hours_max." in answer.sentence


def test_jobs_that_left_no_run_cost_what_they_ran_and_the_newest_of_a_run_counts(
    trial, make_result, ledger_job
):
    """Of `ring`'s three jobs one never started, one left nothing, and one has a result."""
    trial.ran("ring", 1, 0.2)
    [row] = trial.store.list_runs(*DAG_RUN)
    at = row["submitted_at"]
    position = TrialPosition(rules=RULES, variant="ring", round=1, index=1)
    run = make_result("x").submitted.run.model_copy(update={"trial": position})
    lost = {"dag_id": DAG_RUN[0], "dag_run_id": DAG_RUN[1], "run": run, "state": "failed", "gpus": 4}
    jobs = [
        ledger_job("z-first", **lost, created_at=at - 9000, ended_at=at - 8000),
        ledger_job("y-second", **lost, created_at=at - 7200, started_at=at - 5400, ended_at=at - 3600),
    ]
    rules, [ran] = round_runs(trial.store, [row], jobs)
    assert rules == RULES
    assert ran.row == row
    assert ran.gpu_hours == pytest.approx(row["gpu_hours"] + 4 * 0.5)
    _, [ran] = round_runs(trial.store, [], jobs)
    assert (ran.row, ran.gpu_hours) == (None, pytest.approx(2.0))


def test_a_round_that_is_under_way_does_not_count_yet(trial):
    run_rounds(trial, dict.fromkeys(VARIANTS, 0.2), 1)
    trial.ran("default", 2, 0.5)
    answer = trial.answer()
    assert (answer.state.round, answer.state.ended) == (1, False)
    assert answer.sentence.endswith("The answer is not known yet.")


def test_one_run_of_each_bounds_nothing_and_is_not_given_an_interval(trial):
    """By the model the difference could be a thousandfold, which nobody wants to read or see drawn."""
    run_rounds(trial, {"default": 0.2, "ring": 0.21, "broken": None}, 1)
    answer = trial.answer()
    assert "Open: `ring` against `default` (too few runs to bound it). The answer is" in answer.sentence
    rows = {row["variant"]: row for row in answer.rows}
    ring = [rows["ring"][name] for name in ("difference_percent", "low_percent", "high_percent")]
    assert ring == [pytest.approx(5, abs=1), None, None]
    assert answer.content["by_round"] == []
    run_rounds(trial, {"default": 0.2, "ring": 0.21}, 3)
    assert {found["round"] for found in trial.answer().content["by_round"]} >= {2, 3}


def test_variants_with_different_batches_are_compared_by_the_time_of_a_sample(trial):
    for number in range(1, 6):
        trial.ran("default", number, 0.2, gpus=2)
        trial.ran("ring", number, 0.41, gpus=4)  # twice the samples
        trial.ran("broken", number, 0.3, gpus=2)
    rows = {row["variant"]: row for row in trial.answer().rows}
    assert rows["ring"]["difference_percent"] == pytest.approx(2.5, abs=0.1)


def test_runs_of_a_trial_never_enter_the_history_of_the_weekly_cell_nor_the_other_way(
    trial, store, make_result
):
    def week(number, step_time_s):
        name = f"weekly-{number}"
        publish(
            store,
            make_result(
                name,
                step_times=[step_time_s * (1 + 0.002 * (number % 3))] * 20,
                submitted_at=1.7e9 + number * WEEK_S,
                dag_run_id="by-hand",
            ),
        )
        return store.run(name)

    for number in range(1, 9):
        week(number, 0.2)
    for number in range(1, 9):
        trial.ran("ring", number, 0.4, submitted_at=1.7e9 + number * WEEK_S + 60)
    row = week(9, 0.2)
    finding = finding_of_run(store, row)
    assert finding is not None
    assert abs(finding.change_percent or 0) < 2
    trial.ran("default", 9, 0.8)
    assert finding_of_run(store, store.run(f"trial-{trial.number:02}")) is None
    slower = finding_of_run(store, week(10, 0.24))
    assert slower is not None
    assert (slower.change_percent or 0) > 15


def test_the_noise_of_a_configuration_is_that_of_its_history(trial, store, make_result, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    position = TrialPosition(rules=RULES, variant="ring", round=1, index=0)
    planned = make_result("planned").submitted.run.model_copy(update={"trial": position})
    assert known_noise_percent(planned) is None
    for number in range(1, 10):
        times = [0.2 * (1.01 if number % 2 else 0.99)] * 20
        publish(
            store, make_result(f"weekly-{number}", step_times=times, submitted_at=1.7e9 + number * WEEK_S)
        )
        trial.ran("ring", number, 0.4)
    assert known_noise_percent(planned) == pytest.approx(1.05, abs=0.1)


def test_the_command_shows_the_answer_as_a_table_json_and_csv(trial, capsys, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", trial.store.url)
    run_rounds(trial, {"default": 0.2, "ring": 0.21, "broken": None}, 4)
    sentence = trial.answer().sentence
    assert steptime("trial", "show", "nccl-ring") == 0
    assert sentence in capsys.readouterr().out
    assert steptime("trial", "show", "nccl-ring", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["answer"], told["best"]) == (sentence, "default")
    assert steptime("trial", "show", "nccl-ring", "--format", "csv") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("variant,status,runs,difference_percent")
    assert sentence in shown.err


def test_a_trial_without_results_is_named(store, capsys, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    with pytest.raises(UserError, match="no run of the trial 'example-micro-batch' has a result yet"):
        newest_trial(store, "example-micro-batch")
    assert steptime("trial", "show", "x") == 1
    assert capsys.readouterr().err.startswith("steptime: unknown trial 'x'. Valid are: example-micro-batch")
