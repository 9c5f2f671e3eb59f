"""`steptime report`: one file that says what the pages say, and neither loads nor runs anything."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, watched_page
from playwright.sync_api import Browser, expect
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app, main
from steptime.judging.comparison import compare_since
from steptime.reporting.page import html, report_since, report_sweep, scaling_chart, trend_chart
from steptime.results.models import Check, Result, Verdict
from steptime.results.store import Store

MakeResult = Callable[..., Result]
WEEK_S = 7 * 86_400.0
HOSTILE = (
    "</style></title><script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">"
)


@pytest.fixture
def half_a_year(half_years: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[1])
    return Store(half_years[1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def report(file: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["report", *arguments, "-o", str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_it_says_what_the_comparison_says(half_a_year: Store, tmp_path: Path) -> None:
    told = report(tmp_path / "week.html")

    found = compare_since(half_a_year, time.time() - WEEK_S)
    text = (tmp_path / "week.html").read_text()
    assert found.completeness is not None
    line = found.completeness.line
    assert told.startswith(f"{found.sentence}.\n{line}.\nreport: {tmp_path / 'week.html'}, ")
    assert found.sentence in text
    assert all(f"<li>{remark}</li>" in text for remark in found.remarks)
    assert [text.count(f'id="{kind}-{place}"') for kind in ("trend", "scaling") for place in (0, 1)] == [
        1
    ] * 4
    assert text.count("<figure") == len(found.findings) + 2
    assert "tiny·fp32·2 (rejected) is rejected: Expected 20 steps, but found 3." in text
    assert found.took.startswith("8 cells · 14 runs, 1 rejected · 0.481 GPU-hours · in the queue for ")
    assert f'<p class="quiet">{found.took} · made ' in text


def of_sweep(make_result: MakeResult, job_name: str, week: str, **options: Any) -> Result:
    ran = {"sweep": "nightly", "dag_id": "scaling_sweep"}
    made_by = make_result("x", dag_run_id=week).submitted.made_by.model_copy(update=ran)
    return make_result(job_name, made_by=made_by, **options)


def test_the_newest_run_of_a_sweep(
    make_result: MakeResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    statements: list[tuple[str, object]],
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    for week in ("old", "new"):
        for gpus in (1, 2):
            at = 1e9 + (week == "new")
            publish(Store(), of_sweep(make_result, f"{week}-{gpus}", week, gpus=gpus, submitted_at=at))

    statements.clear()
    report(tmp_path / "sweep.html", "--sweep", "nightly")

    asked = [statement for statement, _ in statements]
    counted = [sum(f"runs.{column} = " in one for one in asked) for column in ("sweep", "dag_run_id")]
    assert counted == [2, 1], "its runs are read once, and once those of the weeks before"
    text = (tmp_path / "sweep.html").read_text()
    assert "<h1>steptime: sweep nightly</h1>" in text
    assert "2 cells · 2 runs" in text
    assert "2 cells: 0 slower, 0 faster, 0 unchanged, 2 with insufficient history" in text
    assert 'id="scaling-0"' in text


@pytest.mark.browser
@pytest.mark.parametrize(
    ("scheme", "background"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 29, 45)")]
)
def test_a_browser_without_network_shows_it_whole(
    half_a_year: Store, tmp_path: Path, browser: Browser, scheme: str, background: str
) -> None:
    report(tmp_path / "week.html")
    with watched_page(browser, f"file://{tmp_path}", color_scheme=scheme, offline=True) as watched:
        page = watched.page
        page.goto(f"file://{tmp_path / 'week.html'}")
        expect(page.locator(".sentence")).to_contain_text("8 cells: 3 slower, 1 faster")
        expect(page.locator("body")).to_have_css("background-color", background)
        expect(page.locator("figure > svg")).to_have_count(10)
        slow = page.locator("#trend-2")
        expect(slow).to_contain_text("small·fp32·4")
        expect(slow.locator("circle")).to_have_count(27)
        changed, confirmed = (_day_of(half_a_year, f"small-4-{number}") for number in (25, 27))
        assert (
            slow.locator("path.changes title").text_content() == f"{changed}, changed: OMP_NUM_THREADS 1 → 2"
        )
        assert (
            slow.locator("path.slower title").text_content()
            == f"{confirmed}: 0.8419 s, +5.6 %: slower, confirmed (small-4-27)"
        )
        boxes = page.locator("figure > svg").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().height)"
        )
        assert min(boxes) > 100
        page.get_by_role("link", name="tiny·fp32·4").click()
        assert page.url.endswith("#trend-1")
        assert (watched.complaints, watched.foreign) == ([], [])


def _day_of(store: Store, job_name: str) -> str:
    return time.strftime("%d %b %Y", time.localtime(store.run(job_name)["submitted_at"]))


@pytest.mark.browser
def test_what_jobs_wrote_is_text(
    make_result: MakeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    now = time.time()
    for number in range(9):
        environment = {"OMP_NUM_THREADS": HOSTILE} if number == 8 else {}
        times = [0.2 + 0.1 * (number == 8) + 0.001 * (number % 3)] * 20
        options = {"submitted_at": now - 900 + number, "environment": environment, "dag_run_id": HOSTILE}
        publish(Store(), make_result(f'"{HOSTILE}-{number}', step_times=times, **options))
    bad = Verdict(checks=(Check(name="x", passed=False, message=HOSTILE),))
    publish(Store(), make_result("bad", verdict=bad, size=HOSTILE, submitted_at=now))

    report(tmp_path / "week.html")

    text = (tmp_path / "week.html").read_text()
    assert not re.search("<script|<img|onerror=[\"']", text)
    assert text.count("document.title") >= 4
    # Without its own policy, too: what keeps a script from running is that there is none.
    (tmp_path / "week.html").write_text(re.sub("<meta http-equiv.*", "", text))
    with watched_page(browser, f"file://{tmp_path}") as watched:
        watched.page.goto(f"file://{tmp_path / 'week.html'}")
        expect(watched.page.locator("li").first).to_contain_text("<script>")
        assert watched.page.title().startswith("steptime: runs since")
        assert (watched.complaints, watched.foreign) == ([], [])


def test_no_control_character_of_a_job_reaches_the_file(make_result: MakeResult, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    control = "a\x1b]0;title\x07\x00\x9b\u202eb"
    for number in range(9):
        environment = {"OMP_NUM_THREADS": control} if number == 8 else {}
        times = [0.2 + 0.1 * (number == 8) + 0.001 * (number % 3)] * 20
        options = {"submitted_at": 1e9 + number, "environment": environment, "dag_run_id": control}
        name = f"{control}-{number}".replace("\0", "")
        publish(store, make_result(name, step_times=times, **options))
    bad = Verdict(checks=(Check(name="x", passed=False, message=control),))
    publish(store, make_result("bad", verdict=bad, size=control, submitted_at=1e9))

    text = html(report_since(store, 0.0), 0.0)

    assert "]0;title" in text
    assert {character for character in text if not character.isprintable()} <= {"\n", "\xa0"}


def test_what_does_not_fit_is_counted(half_a_year: Store) -> None:
    found = report_since(half_a_year, time.time() - WEEK_S)
    assert found.comparison.totals is not None
    assert "more " not in html(found, 0.0)

    some = replace(found, of=HOSTILE, trends=found.trends[:3], runs=found.runs[:4])
    text = html(some, 0.0)

    assert "<p>5 more cells have no chart here.</p>" in text
    assert "<p>The newest 4; 10 more are in the store.</p>" in text
    assert f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(0))} by steptime" in text
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text
    planned = replace(found, comparison=replace(found.comparison, totals=None), runs=[])
    assert "are in the store" not in html(planned, 0.0)


def test_of_very_many_runs_the_newest_are_listed_in_reading_order(
    make_result: MakeResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steptime.reporting.page._MOST_RUNS", 2)
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    for number, gpus in enumerate((1, 4, 2)):
        at = 1e9 + number
        publish(store, of_sweep(make_result, f"run-{number}", "new", gpus=gpus, submitted_at=at))

    for found in (report_since(store, 0.0), report_sweep(store, "nightly")):
        assert [row["gpus"] for row in found.runs] == [2, 4]


def test_what_was_measured_together_before_is_not_drawn(half_a_year: Store, tmp_path: Path) -> None:
    (last,) = half_a_year.measured_together(limit=1)
    assert report_since(half_a_year, last["submitted_at"]).scaling
    assert not report_since(half_a_year, last["submitted_at"] + 1).scaling
    assert not report_since(Store(f"sqlite:///{tmp_path / 'empty.db'}"), 0.0).scaling


def test_charts_have_each_run_where_its_numbers_are(half_a_year: Store) -> None:
    found = report_since(half_a_year, time.time() - WEEK_S)
    name, rows = next(one for one in found.trends if one[0] == "small·fp32·4")

    chart = trend_chart(name, rows)

    by_time = sorted(range(len(rows)), key=lambda place: rows[place]["judged_s"])
    by_place = sorted(range(len(rows)), key=lambda place: -chart.marks[place].y)
    assert [chart.marks[place].y for place in by_time] == [chart.marks[place].y for place in by_place]
    assert [mark.x for mark in chart.marks] == sorted(mark.x for mark in chart.marks)
    assert [mark.shape for mark in chart.marks].count("diamond") == 1
    assert [line.kind for line in chart.lines] == ["band", "runs", "baseline"]
    assert all(0 < mark.y < 230 and 0 < mark.x < 620 for mark in chart.marks)


def test_a_published_value_is_drawn_if_it_is_near(half_a_year: Store) -> None:
    _, rows = report_since(half_a_year, time.time() - WEEK_S).trends[0]
    near, far = ([{**row, "published_step_time_s": value} for row in rows] for value in (0.205, 9.0))

    assert ("published", "published") in trend_chart("x", near).legend
    assert trend_chart("x", near).remark == ""
    assert trend_chart("x", far).remark == "published, 9 s, is too far away for this picture"
    assert [line.kind for line in trend_chart("x", far).lines] == ["band", "runs", "baseline"]
    usual = rows[0]["judged_s"]
    from_there_on_below = trend_chart("x", [{**row, "published_step_time_s": 0.95 * usual} for row in rows])
    (limit,) = (line for line in from_there_on_below.lines if line.kind == "passes-until")
    assert f",{from_there_on_below.marks[0].y}L" in limit.path, "as high as a run that just passes"
    assert ("passes-until", "passes until") in from_there_on_below.legend


def test_an_accepted_level_and_a_drift_are_drawn(half_a_year: Store) -> None:
    _, rows = report_since(half_a_year, time.time() - WEEK_S).trends[0]
    rows = [{**row, "level_s": 0.2, "accepted": ""} for row in rows]
    rows[3]["accepted"] = "NeMo 2.8 (ada)"

    chart = trend_chart("x", rows)

    assert ("level", "level") in chart.legend
    (flag,) = (one for one in chart.uprights if one.kind == "accepted")
    assert flag.text.endswith("accepted: NeMo 2.8 (ada)")
    assert flag.x == chart.marks[3].x


def test_lines_of_a_scaling_chart_are_apart_in_what_they_differ_in(half_a_year: Store) -> None:
    rows = [
        dict(row) for row in report_since(half_a_year, time.time() - WEEK_S).scaling if row["size"] == "tiny"
    ]
    fp8 = [{**row, "dtype": "fp8", "step_time_over_published": 1.0 + row["gpus"] / 100} for row in rows]
    fp8[-1]["against_publication"] = "below"

    chart = scaling_chart("tiny", [*rows, *fp8])

    assert chart.legend == [("series-1", "fp32"), ("series-2", "fp8")]
    assert [text for _, text in chart.x_ticks] == ["1", "2", "4", "8"]
    assert {mark.shape for mark in chart.marks if mark.kind == "series-1"} == {"dot", "repeat"}
    assert sum(mark.shape == "triangle" for mark in chart.marks) == 4
    (cross,) = (mark for mark in chart.marks if mark.shape == "cross")
    assert cross.text.endswith(" at 8, below the publication")
    assert "fp32: 1" in chart.described
    assert all(one.top < one.bottom for one in chart.uprights)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sweep", "weekly", "--since", "7d", "-o", "x.html"], "--sweep excludes --since and --suite"),
        (["--sweep", "wekly", "-o", "x.html"], "unknown sweep 'wekly': did you mean 'weekly'?"),
        (["--since", "yesterday", "-o", "x.html"], "--since 'yesterday' is no time"),
        (["-o", "gone/x.html"], "'gone/x.html' is no file in a folder that is there"),
        (["-o", "."], "'.' is no file in a folder that is there"),
        ([], "Missing option '--output' / '-o'"),
    ],
)
@pytest.mark.usefixtures("half_a_year")
def test_what_cannot_be_is_one_sentence_and_no_file(
    tmp_path: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["steptime", "report", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (1, "")
    assert sentence in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_quiet_week_and_an_empty_store(
    half_a_year: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(tmp_path / "none.html", "--since", "2099-01-01")
    assert "No cell that is judged has run." in (tmp_path / "none.html").read_text()
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    done = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "x.html")])
    assert "there are no results to report, as" in str(done.exception)
