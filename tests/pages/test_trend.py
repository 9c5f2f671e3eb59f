"""The trend of a series on the page: its usual level over time, its changes, and links to its runs."""

import pytest
from pages.framed import NAVIGATION, column, ending, opened
from playwright.sync_api import expect
from sixty_cells import ACCEPTED, BELOW, LAST, STEP, Made

from steptime.judging import judgements
from steptime.judging.series import Series, series_runs
from steptime.judging.trend import trend
from steptime.pages import answers
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

SLOWER = Made(STEP, LAST, 2, 1, ()).job_name
"""The newest run of the cell that got slower, which is the second of two confirmation runs."""
SETS = """(canvas) => Chart.getChart(canvas).data.datasets.map(({label, data, pointBackgroundColor}) =>
    ({label, values: data.map(({y}) => y), colours: pointBackgroundColor}))"""


@pytest.fixture(autouse=True)
def half_a_year(half_year):
    return Store(half_year.planted)


def test_a_long_series_begins_with_its_newest_runs_and_a_link_shows_all(page, monkeypatch):
    monkeypatch.setattr(answers, "TREND_RUNS", 10)
    frame = opened(page, f"{NAVIGATION}?view=trend&series={SLOWER}")
    expect(frame.locator("#summary")).to_contain_text("slower, confirmed, after 30 runs")
    expect(frame.locator("tr[data-run]")).to_have_count(10)
    expect(frame.get_by_text("Shown are the newest 10 of 30 runs.")).to_be_visible()
    frame.get_by_role("link", name="Show all", exact=True).click()
    expect(frame.locator("tr[data-run]")).to_have_count(30)
    expect(frame.get_by_role("link", name="Show all", exact=True)).to_have_count(0)


def test_a_cell_leads_to_its_trend_and_a_point_to_its_run(page, half_a_year):
    frame = opened(page, NAVIGATION)
    frame.get_by_role("link", name=STEP, exact=True).click()
    expect(frame.locator("#summary")).to_contain_text("slower, confirmed, after 30 runs")
    expect(page).to_have_url(ending(f"{NAVIGATION}?view=trend&series={SLOWER}"))
    (series,) = {Series.from_row(half_a_year.run(SLOWER))}
    known = {one["label"]: one for one in frame.locator("canvas#trend").evaluate(SETS)}
    assert known["runs"]["values"] == [
        run.seconds for run in series_runs(half_a_year.results(**series.key)[::-1])
    ]
    rows = trend(half_a_year, series)
    assert known["usual, at most"]["values"] == [row["high_s"] for row in rows]
    # The slow runs differ in colour from those before.
    assert known["runs"]["colours"][-1] != known["runs"]["colours"][-4]
    assert [row["verdict"] for row in rows][-4:] == ["unchanged", *3 * ["slower"]]
    # The y axis is fitted to the data and does not begin at zero.
    low = frame.locator("canvas#trend").evaluate("(canvas) => Chart.getChart(canvas).scales.y.min")
    assert low > 0.9 * min(value for value in known["runs"]["values"])
    assert column(frame, "changes")[2] == "NVTE_FUSED_ATTN 1 → 0"
    assert column(frame, "node_changes")[0].startswith("nodes: ")
    assert column(frame, "minimum_detectable_change_percent")[0] != ""
    place = frame.locator("canvas#trend").evaluate(
        "(canvas) => { const {x, y} = Chart.getChart(canvas).getDatasetMeta(0).data.at(-1); return {x, y}; }"
    )
    frame.locator("canvas#trend").click(position=place)
    expect(frame.locator("#detail-title")).to_contain_text(SLOWER)
    expect(page).to_have_url(ending(f"series={SLOWER}&run={SLOWER}"))


@pytest.mark.parametrize(
    ("cell", "limit", "mark"), [(STEP, False, "passes"), (BELOW, True, "below"), (ACCEPTED, True, "below")]
)
def test_the_publication_is_drawn_and_says_whether_the_newest_run_passes(
    page, half_a_year, cell, limit, mark
):
    newest = Made(cell, LAST, 0, 1, ()).job_name
    published = half_a_year.run(newest)["published_step_time_s"]
    frame = opened(page, f"{NAVIGATION}?view=trend&series={newest}")
    expect(frame.locator("#summary")).to_contain_text(f"{cell}: ")
    drawn = {one["label"]: one["values"] for one in frame.locator("canvas#trend").evaluate(SETS)}
    assert drawn["published"] == [published] * 2
    assert drawn.get("passes the publication until") == (
        [pytest.approx(published / 0.95)] * 2 if limit else None
    )
    said = "the newest run passes" if mark == "passes" else "the newest run is below"
    expect(frame.locator(".footnote").first).to_contain_text(f"Published: {published:.4g} s")
    expect(frame.locator(".footnote").first).to_contain_text(said)
    assert column(frame, "against_publication")[0] == mark


def test_its_address_can_be_handed_on_and_another_series_chosen(page):
    frame = opened(page, f"{NAVIGATION}?view=trend&series={Made(BELOW, 3, 0, 1, ()).job_name}")
    expect(frame.locator("#summary")).to_contain_text(f"{BELOW}: ")
    frame.locator("#series").select_option(value=SLOWER)
    expect(frame.locator("#summary")).to_contain_text(f"{STEP}: ")
    frame.locator("tr[data-run] .open").first.click()
    expect(frame.locator("#detail-title")).to_contain_text(SLOWER)
    page.keyboard.press("Escape")
    expect(frame.locator("#detail")).to_be_hidden()
    expect(page).to_have_url(ending(f"series={SLOWER}"))


def test_the_worst_cell_is_first_and_the_next_is_a_click_away(page):
    frame = opened(page, f"{NAVIGATION}?view=trend")
    shown = frame.locator("#series option:checked")
    expect(shown).to_contain_text("slower, confirmed")
    expect(frame.get_by_role("button", name="Previous")).to_be_disabled()
    first = frame.locator("#summary").text_content()
    frame.get_by_role("button", name="Next").click()
    expect(frame.locator("#summary")).not_to_have_text(first or "")
    frame.locator("#find-series").fill(BELOW.replace("·", " "))
    frame.locator("#find-series").press("Enter")
    expect(frame.locator("#summary")).to_contain_text(f"{BELOW}: ")
    frame.locator("#beside-series").select_option(value=SLOWER)
    expect(frame.get_by_role("img", name=f"Changes of {BELOW} and {STEP} over dates")).to_be_visible()
    expect(page).to_have_url(ending(f"beside={SLOWER}"))
    frame.locator("#find-series").fill("")
    frame.locator("#series").select_option(value=SLOWER)  # not compared with itself
    expect(frame.get_by_role("img", name=f"Times of {STEP} ")).to_be_visible()


def test_a_series_without_a_valid_run_has_no_chart_of_another(page, publish, store, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    publish("valid")
    check = Check(name="job_succeeded", passed=False, message="CUDA out of memory on rank 1.")
    publish("failed", gpus=4, verdict=Verdict(checks=(check,)))
    frame = opened(page, f"{NAVIGATION}?view=trend&series=valid&run=failed")
    expect(frame.locator("#trend")).to_be_attached()
    frame.get_by_role("link", name="Trend of its series").click()
    expect(frame.locator("#summary")).to_have_text("tiny·fp32·4")
    expect(frame.locator("#message")).to_contain_text("CUDA out of memory on rank 1")
    expect(frame.locator("#trend")).to_have_count(0)


def test_failed_attempts_are_marked_and_nothing_is_drawn_where_nothing_ran(page, publish, store, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    for week in (0, 1, 2, 3, 8, 9):
        publish(f"run-{week}", submitted_at=1.78e9 + week * 604_800)
    check = Check(name="job_succeeded", passed=False, message="CUDA out of memory on rank 1.")
    publish("failed", submitted_at=1.78e9 + 10 * 604_800, verdict=Verdict(checks=(check,)))
    frame = opened(page, f"{NAVIGATION}?view=trend&series=run-0")
    canvas = frame.locator("canvas#trend")
    (failed,) = canvas.evaluate(
        "(c) => Chart.getChart(c).data.datasets.find(({label}) => label === 'failed').data"
    )
    assert failed["text"] == ["failed: CUDA out of memory on rank 1."]
    colours = canvas.evaluate(
        """(c) => Chart.getChart(c).getDatasetMeta(0).dataset.segments.map(({style}) => style?.borderColor)"""
    )
    assert "transparent" in colours


def test_a_drift_and_an_accepted_level_are_marked(page, publish, store, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    for week in range(26):
        level = 1.2 if week < 3 else 1 + 0.002 * week + 0.01 * (-1) ** week
        publish(f"run-{week:02}", step_times=[level] * 20, submitted_at=1.78e9 + week * 604_800)
    judgements.accept(store, "run-03", note="half of it", accepted_by="somebody")
    frame = opened(page, f"{NAVIGATION}?view=trend&series=run-00")
    labels = frame.locator("#trend").evaluate(
        "(canvas) => Chart.getChart(canvas).data.datasets.map(({label}) => label)"
    )
    expect(frame.locator("tr[data-run='run-03']")).to_contain_text("half of it (somebody)")
    expect(frame.locator("#since")).to_contain_text("It drifts slowly, by ")
    assert "level" in labels
    # The caption names only what is drawn.
    expect(frame.locator("figcaption")).to_contain_text("flag: level accepted; violet: level")
    expect(frame.locator("figcaption")).not_to_contain_text("published")


def test_a_level_is_accepted_on_the_page_with_a_reason(page, publish, store, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    for week in range(8):
        publish(f"run-{week}", step_times=[1.2 if week == 7 else 1.0] * 20, submitted_at=1.78e9 + week)
    frame = opened(page, f"{NAVIGATION}?view=trend&series=run-7")
    expect(frame.locator("#summary")).to_contain_text("slower, suspected")
    frame.get_by_role("button", name="Accept this level").click()
    expect(frame.get_by_label("Why")).to_be_focused()
    frame.get_by_role("button", name="Cancel").click()
    frame.get_by_role("button", name="Accept this level").click()
    page.keyboard.type("a new driver")
    page.keyboard.press("Enter")
    expect(frame.locator("#summary")).to_contain_text("insufficient history")
    expect(frame.locator("tr[data-run='run-7']")).to_contain_text("a new driver (somebody)")
    expect(frame.get_by_role("button", name="Accept this level")).to_be_hidden()


def test_a_level_that_began_long_ago_is_accepted_from_its_run_on(watched, publish, store, monkeypatch):
    page = watched.page
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    for week in range(9):
        publish(f"run-{week}", step_times=[1.2 if week > 5 else 1.0] * 20, submitted_at=1.78e9 + week)
    frame = opened(page, f"{NAVIGATION}?view=trend&series=run-8&run=run-6")
    of_run = frame.locator("#detail")
    of_run.get_by_role("button", name="Accept this level").click()
    of_run.get_by_label("Why").fill("x" * 500)
    monkeypatch.setenv("STEPTIME_STORE_URL", "mysql://nowhere")
    page.keyboard.press("Enter")
    expect(of_run.get_by_role("alert")).to_contain_text("STEPTIME_STORE_URL")
    watched.complaints.clear()  # Chromium logs the answer 503
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    page.keyboard.press("Enter")
    expect(of_run).to_be_hidden()
    expect(frame.locator("#summary")).to_contain_text("insufficient history")
    expect(frame.locator("tr[data-run='run-6']")).to_contain_text("(somebody)")


def test_who_may_not_edit_runs_has_no_button(page, auth_manager):
    auth_manager.editable.clear()
    frame = opened(page, f"{NAVIGATION}?view=trend&series={SLOWER}&run={SLOWER}")
    expect(frame.locator("#summary")).to_contain_text("slower, confirmed")
    expect(frame.locator("#detail-title")).to_contain_text(SLOWER)
    expect(frame.get_by_role("button", name="Accept", include_hidden=True)).to_have_count(2)
    expect(frame.get_by_role("button", name="Accept")).to_have_count(0)
