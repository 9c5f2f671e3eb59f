"""One sentence each: of a log, of a verdict, of the runs of a DAG run."""

from collections.abc import Callable
from typing import Any

import pytest

from steptime.airflow import sentences
from steptime.airflow.operators import _folded
from steptime.judging.detection import Standing
from steptime.judging.findings import Comparison, Finding
from steptime.judging.series import JudgedRun, Series
from steptime.logs.models import TrainingLog
from steptime.recipes.models import Run
from steptime.results.models import Check, Measurement, Verdict


def test_of_a_log(a_run: Callable[..., Run]) -> None:
    log = TrainingLog(path="log.out", format="nemo2", bytes_read=0, steps=())
    measured = Measurement(step_time_mean_s=0.123456, mfu_percent=12.345)

    assert (
        sentences.of_log(a_run(), log, measured)
        == "tiny·fp32·1: 0.1235 s a step, MFU 12.3 %, 0 steps in its log"
    )
    assert sentences.of_log(a_run(), log, None) == "tiny·fp32·1: nothing can be measured, 0 steps in its log"


def test_of_a_verdict(a_run: Callable[..., Run]) -> None:
    fine = Check(name="steps", passed=True, message="all there", severity="error")
    noisy = Check(name="steady", passed=False, message="noisy", severity="warning")
    broken = Check(name="loss", passed=False, message="NaN", severity="error")

    assert sentences.of_verdict(a_run(), Verdict(checks=(fine, noisy))) == (
        "tiny·fp32·1 is valid: 1 checks passed, 1 warned (steady)"
    )
    assert sentences.of_verdict(a_run(), Verdict(checks=(fine, broken))) == (
        "tiny·fp32·1 is rejected: 1 checks failed (loss), 1 passed"
    )


@pytest.mark.parametrize(
    ("valid", "sentence"),
    [
        ("ab", "all 2 runs have valid results: a 0.5 s, b 0.5 s"),
        ("a", "1 of 2 runs have valid results: a 0.5 s; without: b"),
        ("", "0 of 2 runs have valid results; without: a, b"),
    ],
)
def test_of_runs(valid: str, sentence: str) -> None:
    rows = {label: {"state": "valid", "step_time_mean_s": 0.5} for label in valid}
    rows |= {label: {"state": "rejected", "step_time_mean_s": 9.9} for label in "ab" if label not in valid}
    assert sentences.of_runs("ab", rows) == sentence


def test_of_many_runs_the_first_are_named() -> None:
    rows: dict[str, dict[str, Any]] = {
        label: {"state": "valid", "step_time_mean_s": 1.0} for label in "abcdef"
    }
    assert sentences.of_runs("abcdef", rows) == (
        "all 6 runs have valid results: a 1 s, b 1 s, c 1 s, d 1 s and 2 more"
    )


def test_of_a_sweep_what_it_found_comes_before_what_is_missing(a_run: Callable[..., Run]) -> None:
    new = Finding(Series.of_run(a_run()), JudgedRun({}, 0.1, "step_time_mean_s"), Standing())
    found = Comparison((new,))
    one = "1 cell: 0 slower, 0 faster, 0 unchanged, 1 with insufficient history"

    assert sentences.of_sweep(found, "abc", "") == one
    assert sentences.of_sweep(found, "abc", "b") == f"{one}; 1 of 3 runs without a valid result: b"
    assert sentences.of_sweep(Comparison(()), "abc", "abc") == "3 of 3 runs without a valid result: a, b, c"
    assert sentences.of_sweep(Comparison(()), "abc", "") == (
        "all 3 runs have valid results, none of which is judged"
    )


def test_what_staging_says_can_be_unfolded() -> None:
    told: list[str] = []

    def info(line: str, *arguments: object) -> None:
        told.append(line % arguments)

    with _folded(info):
        pass
    assert told == [], "an empty group would only be in the way"
    with _folded(info) as report:
        report("Collecting torch")
        report("100 % there")
    assert told == ["::group::Output of staging", "Collecting torch", "100 % there", "::endgroup::"]
