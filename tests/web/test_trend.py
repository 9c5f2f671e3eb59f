"""The trend of a series, on the page: what was usual when, what changed, and where its runs are."""

from collections.abc import Callable

import pytest
from browser import Watched
from playwright.sync_api import Page, expect
from web.framed import NAVIGATION, column, opened

from steptime.judging import judgements
from steptime.judging.series import Series, judged_runs
from steptime.judging.trend import trend
from steptime.results.models import Result
from steptime.results.store import Store

from .conftest import AuthManager

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

SLOWER = "small-4-27"
"""The newest run of `small·fp32·4`, the second of two fresh ones."""
SETS = """(canvas) => Chart.getChart(canvas).data.datasets.map(({label, data, pointBackgroundColor}) =>
    ({label, values: data.map(({y}) => y), colours: pointBackgroundColor}))"""


@pytest.fixture(autouse=True)
def half_a_year(half_years: tuple[str, str], store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[1])
    return Store(half_years[1])


def test_a_cell_leads_to_its_trend_and_a_point_to_its_run(page: Page, half_a_year: Store) -> None:
    frame = opened(page, NAVIGATION)
    frame.get_by_role("link", name="small·fp32·4").click()
    expect(frame.locator("#summary")).to_contain_text("slower, confirmed, after 28 runs")
    assert page.url.endswith(f"{NAVIGATION}?view=trend&series={SLOWER}")
    (series,) = {Series.of_row(half_a_year.run(SLOWER))}
    known = {one["label"]: one for one in frame.locator("canvas#trend").evaluate(SETS)}
    assert known["runs"]["values"] == [
        run.seconds for run in judged_runs(half_a_year.results(**series.key)[::-1])
    ]
    rows = trend(half_a_year, series)
    assert known["usual, at most"]["values"] == [row["high_s"] for row in rows]
    # The first of the slow runs, and what came after it, have another colour than all before.
    assert len(set(known["runs"]["colours"][6:25])) == 1
    assert known["runs"]["colours"][-1] != known["runs"]["colours"][24]
    # y is fitted to the data: it does not begin at zero.
    low = frame.locator("canvas#trend").evaluate("(canvas) => Chart.getChart(canvas).scales.y.min")
    assert low > 0.9 * min(value for value in known["runs"]["values"])
    assert "OMP_NUM_THREADS 1 → 2" in column(frame, "changes")[2]
    place = frame.locator("canvas#trend").evaluate(
        "(canvas) => { const {x, y} = Chart.getChart(canvas).getDatasetMeta(0).data.at(-1); return {x, y}; }"
    )
    frame.locator("canvas#trend").click(position=place)
    expect(frame.locator("#detail-title")).to_contain_text(SLOWER)
    assert page.url.endswith(f"series={SLOWER}&run={SLOWER}")


def test_its_address_can_be_handed_on_and_another_series_chosen(page: Page) -> None:
    frame = opened(page, f"{NAVIGATION}?view=trend&series=tiny-1-03")
    expect(frame.locator("#summary")).to_contain_text("tiny·fp32·1: ")
    frame.locator("#series").select_option(value=SLOWER)
    expect(frame.locator("#summary")).to_contain_text("small·fp32·4: ")
    frame.locator("tr[data-run] .open").first.click()
    expect(frame.locator("#detail-title")).to_contain_text(SLOWER)
    page.keyboard.press("Escape")
    expect(frame.locator("#detail")).to_be_hidden()
    assert page.url.endswith(f"series={SLOWER}")


def test_an_unknown_series_is_told(watched: Watched) -> None:
    frame = opened(watched.page, f"{NAVIGATION}?view=trend&series=none")
    expect(frame.locator("#message")).to_contain_text("there is no run 'none'")
    watched.complaints.clear()  # Chromium's, of the answer 404


def test_a_drift_and_an_accepted_level_are_marked(
    page: Page, publish: Callable[..., Result], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    expect(frame.locator("#drift")).to_contain_text("It drifts slowly, by ")
    assert "level" in labels


def test_a_level_is_accepted_on_the_page_with_a_reason(
    page: Page, publish: Callable[..., Result], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_who_may_not_edit_runs_has_no_button(page: Page, auth_manager: AuthManager) -> None:
    auth_manager.editable.clear()
    frame = opened(page, f"{NAVIGATION}?view=trend&series={SLOWER}")
    expect(frame.locator("#summary")).to_contain_text("slower, confirmed")
    expect(frame.locator("#accepting")).to_be_hidden()
