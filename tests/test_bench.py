"""`make bench`: figures over time are judged as trainings are, and what is suspected is run anew."""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bench
import figure_store
from figures import Figure, show
from steptime.cli import app
from steptime.results.store import Store

USUAL = (1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.005)
Measure = Callable[[Iterable[float]], int]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store of `make bench`, which commands are pointed at."""
    url = f"sqlite:///{tmp_path / 'kept' / 'benchmarks.db'}"
    monkeypatch.setenv("STEPTIME_STORE_URL", url)
    return Store(url)


@pytest.fixture
def measure(store: Store, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Give so many runs of `dag_import`, one after the other: the exit code of the last `make bench`."""

    def run(values: Iterable[float], better: str = "lower") -> int:
        left = list(values)

        def measured(*_: object) -> dict[str, Figure]:
            return {"import": Figure("import", left.pop(0), "s", better)}  # type: ignore[arg-type]

        monkeypatch.setattr(bench, "measured", measured)
        code = 0
        while left:
            code = bench.watch(["dag_import"], store)
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


@pytest.mark.slow
def test_another_machine_begins_another_series(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(USUAL)
    monkeypatch.setattr(figure_store, "processor", lambda: "another processor")
    assert measure([1.2]) == 0


@pytest.mark.long
def test_the_commands_of_results_show_figures_over_time(measure: Measure) -> None:
    measure(USUAL)
    measure([1.2, 1.21, 1.19])

    compared, drawn = (CliRunner().invoke(app, ["results", name]) for name in ("compare", "trend"))
    assert compared.exit_code == bench.SLOWER_EXIT_CODE
    assert f"1 slower, 0 faster, 0 unchanged; worst import·s·{os.cpu_count()} +19.9 %" in compared.stdout
    assert drawn.stdout.splitlines()[1].startswith("0.99 s ")


def test_the_table_has_the_newest_run_with_what_was_beside_it(
    store: Store, measure: Measure, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = {"limit": 200.0}
    rates = [Figure("log", value, "MB/s", "higher", beside, goal=120.0) for value in (100.0, 125.0)]
    for rate in (*rates, Figure("none at all", 0.0, "cells")):
        figure_store.publish(store, "log_reading", ("--megabytes", "64"), {rate.name: rate})

    bench.print_table(store)
    title, _, _, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert title.startswith(
        f"`log_reading --megabytes 64`, {figure_store.processor()}, {os.cpu_count()} cores"
    )
    assert rows == ["| log | 125 | MB/s | limit 200 (0.62×), goal 120 | insufficient history |"]


def test_a_figure_of_nothing_is_not_judged(measure: Measure, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure([0.0]) == 0
    assert "| import | 0 | s |  | not judged |" in capsys.readouterr().out


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


def test_what_a_commit_cannot_be_measured_by_has_the_reason_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One figure comes before the failure and is compared; a failure here is no figure of another commit."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "dag_import.py").write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(bench.__file__).parent)!r})
from pathlib import Path
from figures import Figure, show
show([Figure("import", 2.0, "s")], as_json=True)
if not Path("new_part").exists():
    sys.exit("ImportError: cannot import name 'new'")
show([Figure("new", 3.0, "s")], as_json=True)
"""
    )
    (tmp_path / "new_part").touch()
    (tmp_path / "old").mkdir()
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "checked_out", lambda _: nullcontext(tmp_path / "old"))

    bench.compare(["dag_import"], "1f65a9a", rounds=2)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| import | s | 2 | 2 | 1.00 | overlap |  |",
        "| new | s | not measurable at 1f65a9a: ImportError: cannot import name 'new' | 3 |  |  |  |",
    ]
    (tmp_path / "new_part").unlink()
    with pytest.raises(SystemExit, match="bench: dag_import failed: ImportError"):
        bench.measured("dag_import", tmp_path)


def test_a_line_of_json_is_the_figure_that_was_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure("log", 50.0, "MB/s", "higher", {"rg": 100.0}, goal=60.0)

    assert show([figure], as_json=True) == 2
    line = capsys.readouterr().out
    assert Figure.of_json(line) == figure
    assert "command" in json.loads(line)
    assert str(figure).split() == ["log", "50", "MB/s;", "rg", "100", "(0.50×);", "goal", "60", "MISSED"]
