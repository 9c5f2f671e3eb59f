"""`make bench`: figures over time are judged as trainings are, and what is suspected is run anew."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import bench
from figures import Figure, show

USUAL = (1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.005)
Measure = Callable[[Iterable[float]], int]


@pytest.fixture
def history(tmp_path: Path) -> bench.History:
    return bench.History(tmp_path / "kept" / "benchmarks.jsonl")


@pytest.fixture
def measure(history: bench.History, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Give so many runs of `dag_import`, one after the other: the exit code of the last `make bench`."""

    def run(values: Iterable[float], better: str = "lower") -> int:
        left = list(values)

        def measured(*_: object) -> dict[str, Figure]:
            return {"import": Figure("import", left.pop(0), "s", better)}  # type: ignore[arg-type]

        monkeypatch.setattr(bench, "measured", measured)
        code = 0
        while left:
            code = bench.watch(["dag_import"], history)
        return code

    return run


def test_what_is_slower_is_run_twice_more_and_confirmed(
    measure: Measure, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(USUAL) == 0
    assert measure([1.2, 1.21, 1.19]) == bench.SLOWER_EXIT_CODE

    printed = capsys.readouterr()
    assert "confirmed slower, +19.9 % of time" in printed.out
    assert printed.err.count("dag_import runs anew, suspected: import") == 2


def test_one_slow_run_is_dismissed(measure: Measure, capsys: pytest.CaptureFixture[str]) -> None:
    measure(USUAL)
    assert measure([1.2, 1.0, 1.01]) == 0
    assert "dismissed slower" in capsys.readouterr().out


def test_of_a_rate_less_is_slower(measure: Callable[..., int]) -> None:
    measure([100 * value for value in USUAL], "higher")
    assert measure([80, 81, 79], "higher") == bench.SLOWER_EXIT_CODE


def test_other_arguments_begin_another_series(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(USUAL)
    monkeypatch.setitem(bench.SHORT_FORMS, "dag_import", ("--limit", "1"))
    assert measure([1.2]) == 0


@pytest.mark.parametrize(
    ("after", "row"),
    [
        ((2.0, 2.2), "| import | s | 1 | 2.1 | 0.48 | apart | limit 1.1 (0.50×), goal 2, missed |"),
        ((1.0, 1.1), "| import | s | 1 | 1.05 | 0.95 | overlap | limit 0.55 (0.50×), goal 2 |"),
    ],
)
def test_two_commits_are_compared_by_medians_and_ranges(after: tuple[float, ...], row: str) -> None:
    """Beside stands what the last turn was compared with."""
    before = [Figure("import", value, "s") for value in (1.0, 1.0)]
    turns = [Figure("import", value, "s", beside={"limit": value / 2}, goal=2.0) for value in after]
    assert bench.compared_row(before, turns) == row


def test_a_line_of_json_is_the_figure_that_was_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure("log", 50.0, "MB/s", "higher", {"rg": 100.0}, goal=60.0)

    assert show([figure], as_json=True) == 2
    line = capsys.readouterr().out
    assert Figure.of_json(line) == figure
    assert "command" in json.loads(line)
    assert str(figure).split() == ["log", "50", "MB/s;", "rg", "100", "(0.50×);", "goal", "60", "MISSED"]
