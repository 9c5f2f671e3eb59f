"""One sentence each: of a log, of a verdict, of the runs of a DAG run."""

from steptime.airflow import summaries
from steptime.judging.detection import Standing
from steptime.judging.findings import Comparison, Finding
from steptime.judging.series import Series, SeriesRun

from .conftest import MakeRun


def test_of_a_sweep_what_it_found_comes_before_what_is_missing(a_run: MakeRun) -> None:
    new = Finding(
        Series.from_run(a_run()), SeriesRun({"stragglers": None}, 0.1, "step_time_mean_s"), Standing()
    )
    found = Comparison((new,))
    one = "1 cell: 0 slower, 0 faster, 0 unchanged, 1 with insufficient history"

    assert summaries.summarize_sweep(found, "abc", "") == one
    assert summaries.summarize_sweep(found, "abc", "b") == f"{one}; 1 of 3 runs without a valid result: b"
    assert (
        summaries.summarize_sweep(Comparison(()), "abc", "abc")
        == "3 of 3 runs without a valid result: a, b, c"
    )
    assert summaries.summarize_sweep(Comparison(()), "abc", "") == (
        "all 3 runs have valid results, none of which is judged"
    )
