"""`steptime report`: the pages as one file, which loads nothing."""

import re
import time

import pytest
from browser import chromium, watched_page
from called import refusal
from playwright.sync_api import expect
from stored import publish
from typer.testing import CliRunner

from steptime.cli import app
from steptime.durations import WEEK_S
from steptime.judging.comparison import compare_since
from steptime.pages import answers
from steptime.pages.report_file import report_sweep
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

HOSTILE = (
    "</style></title><script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">"
)


@pytest.fixture
def half_a_year(half_years, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[1])
    return Store(half_years[1])


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def report(file, *arguments):
    done = CliRunner().invoke(app, ["report", *arguments, "-o", str(file)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.slow
def test_it_says_what_the_comparison_says(half_a_year, tmp_path):
    told = report(tmp_path / "week.html")

    found = compare_since(half_a_year, time.time() - WEEK_S)
    text = (tmp_path / "week.html").read_text()
    assert found.completeness is not None
    line = found.completeness.line
    assert told.startswith(f"{found.sentence}.\n{line}.\nreport: {tmp_path / 'week.html'}, ")
    assert f"<strong>{found.sentence}.</strong>" in text, "readers without scripts have the sentence"


def of_sweep(make_result, job_name, week, sweep, **options):
    ran = {"sweep": sweep, "dag_id": "steptime_sweep"}
    provenance = make_result("x", dag_run_id=week).submitted.provenance.model_copy(update=ran)
    return make_result(job_name, provenance=provenance, **options)


@pytest.mark.long
def test_the_newest_run_of_a_sweep(make_result, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 's.db'}")
    ran = (("old", "nightly", -36), ("last", "nightly", -35), ("new", "nightly", 0), ("other", "weekly", 1))
    for week, sweep, days in ran:
        for gpus in (1, 2):
            options = {"gpus": gpus, "submitted_at": 1e9 + 86_400 * days + 60 * gpus}
            publish(Store(), of_sweep(make_result, f"{week}-{gpus}", week, sweep, **options))

    report(tmp_path / "sweep.html", "--sweep", "nightly")

    asked = []
    monkeypatch.setattr(
        answers, "incidents_since", lambda _store, since, _: asked.append(since) or {"incidents": []}
    )
    found = report_sweep(Store(), "nightly")
    assert found.comparison.cells == 2
    assert asked == [1e9 + 60], "those that were closed since its first run, too"
    known = [dag_run["together"] for dag_run in found.answers["api/scaling"]["known"]]
    assert known == ["steptime_sweep/new", "steptime_sweep/last"], "not later ones, and not older ones"
    assert len(found.answers["api/results"]["rows"]) == len(found.answers["api/scaling"]["rows"]) == 2
    assert "<title>Step times: sweep nightly</title>" in (tmp_path / "sweep.html").read_text()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("scheme", "background"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 29, 45)")]
)
def test_a_browser_without_network_shows_it_whole(half_a_year, tmp_path, browser, scheme, background):
    report(tmp_path / "week.html")
    with watched_page(browser, f"file://{tmp_path}", color_scheme=scheme, offline=True) as watched:
        page = watched.page
        page.goto(f"file://{tmp_path / 'week.html'}")
        expect(page.locator("#summary")).to_contain_text("8 cells: 3 slower, 1 faster")
        expect(page.locator("body")).to_have_css("background-color", background)
        expect(page.locator("tr[data-cell]")).to_have_count(8)
        page.locator("tr[data-cell='small·fp32·4'] .open").click()
        expect(page.locator("canvas#trend")).to_be_visible()
        expect(page.locator("tr[data-run]").first).to_contain_text("slower, confirmed")
        page.reload()
        expect(page.locator("#summary")).to_contain_text("small·fp32·4: 0.8419 s, slower, confirmed")
        page.get_by_role("link", name="Scaling").click()
        expect(page.locator("canvas#scaling-1")).to_be_visible()
        page.go_back()
        page.get_by_role("link", name="This week").click()
        page.locator(".completeness").get_by_role("link", name="tiny·fp32·2").click()
        expect(page.locator("#detail-body")).to_contain_text("Expected 20 steps, but found 3.")
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        assert (watched.complaints, watched.foreign) == ([], [])


@pytest.mark.browser
def test_what_jobs_wrote_is_text(make_result, tmp_path, monkeypatch, browser):
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
    assert not re.search("<script>|<img|onerror=[\"']", text)
    assert text.count("document.title") >= 4
    # Without its own policy, too: what keeps a script from running is that it is text.
    (tmp_path / "week.html").write_text(re.sub("<meta http-equiv[^>]*>", "", text))
    with watched_page(browser, f"file://{tmp_path}") as watched:
        watched.page.goto(f"file://{tmp_path / 'week.html'}")
        expect(watched.page.locator(".completeness li").first).to_contain_text("<script>")
        assert watched.page.title().startswith("Step times: runs since")
        assert (watched.complaints, watched.foreign) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sweep", "weekly", "--since", "7d", "-o", "x.html"], "--sweep excludes --since and --suite"),
        (["--sweep", "wekly", "-o", "x.html"], "unknown sweep 'wekly': did you mean 'example-weekly'?"),
        (["--since", "yesterday", "-o", "x.html"], "--since 'yesterday' is not a time"),
        (["-o", "gone/x.html"], "cannot write to 'gone/x.html': name a file"),
        (["-o", "."], "cannot write to '.': name a file"),
        ([], "Missing option '--output' / '-o'"),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("half_a_year")
def test_what_cannot_be_is_one_sentence_and_no_file(
    tmp_path,
    arguments,
    sentence,
    capsys,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    assert sentence in refusal(capsys, "report", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_quiet_week_and_an_empty_store(half_a_year, tmp_path, monkeypatch):
    report(tmp_path / "none.html", "--since", "2099-01-01")
    assert "0 cells: 0 slower" in (tmp_path / "none.html").read_text()
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    done = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "x.html")])
    assert "there are no results to report, as" in str(done.exception)
