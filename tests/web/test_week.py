"""What got slower, on the page: half a year of weekly runs with planted changes, told in one sentence."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import Watched, watched_page
from playwright.sync_api import Browser, Page, expect
from web.framed import NAVIGATION, column, opened

from steptime.results.store import Store

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

RUN = "?view=runs&run=small-4-27&with=small-4-20"
TAB = "?dag_id=llama31&dag_run_id=manual__2026-11-21"
VIEWS = ["?view=week", "?view=runs", "?view=trend", "?view=scaling", RUN, TAB]
SENTENCE = "8 cells: 3 slower, 1 faster, 3 unchanged, 1 with insufficient history; worst small·fp32·1"


@pytest.fixture(autouse=True)
def half_a_year(half_years: tuple[str, str], store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[1])


def test_the_first_line_is_the_answer_and_the_table_names_the_planted_ones(page: Page) -> None:
    frame = opened(page, NAVIGATION)
    expect(frame.locator("#summary")).to_contain_text(SENTENCE)
    verdicts = dict(zip(column(frame, "cell"), column(frame, "verdict"), strict=True))
    assert verdicts == {
        "small·fp32·1": "slower, suspected",
        "tiny·fp32·4": "slower, confirmed",
        "small·fp32·4": "slower, confirmed",
        "small·fp32·2": "faster, confirmed",
        "tiny·fp32·1": "unchanged",
        "tiny·fp32·2": "unchanged",
        "tiny·fp32·8": "unchanged",
        "small·fp32·8": "insufficient history",
    }
    assert column(frame, "change_percent")[0].startswith("+1")
    expect(frame.locator(".totals")).to_contain_text(
        "8 cells · 14 runs, 1 rejected · 0.481 GPU-hours · in the queue"
    )
    expect(frame.locator(".remarks")).to_contain_text("OMP_NUM_THREADS 1 → 2")


def test_nothing_is_named_where_nothing_was_planted(
    page: Page, half_years: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[0])
    frame = opened(page, NAVIGATION)
    expect(frame.locator("#summary")).to_contain_text("8 cells: 0 slower, 0 faster")
    expect(frame.locator(".remarks li")).to_have_count(0)


def test_a_cause_stands_beside_the_cells_that_it_explains(
    page: Page, moved_together: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", moved_together["node"])
    frame = opened(page, NAVIGATION)
    expect(frame.locator("#summary")).to_contain_text("by node n07")
    expect(frame.locator(".remarks li").first).to_contain_text("node n07: slower in ")
    named = dict(zip(column(frame, "cell"), column(frame, "cause"), strict=True))
    assert set(named.values()) == {"node n07", ""}


def test_another_time_is_chosen_and_stays_in_the_address(page: Page) -> None:
    frame = opened(page, NAVIGATION)
    frame.locator("#period").select_option("1")
    expect(frame.locator(".totals")).to_contain_text("8 cells · ")
    assert page.url.endswith(f"{NAVIGATION}?days=1")
    page.reload()
    expect(frame.locator("#period")).to_have_value("1")


def test_the_views_are_reached_by_keyboard_and_left_by_the_browsers_button(page: Page) -> None:
    frame = opened(page, NAVIGATION)
    runs = frame.get_by_role("link", name="Runs", exact=True)
    runs.focus()
    page.keyboard.press("Enter")
    expect(frame.locator("tr[data-job]").first).to_be_visible()
    expect(runs).to_have_attribute("aria-current", "page")
    assert page.url.endswith("?view=runs")
    page.go_back()
    expect(frame.locator("tr[data-cell]")).to_have_count(8)


def test_a_store_without_runs_says_what_to_do(
    page: Page, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    frame = opened(page, NAVIGATION)
    expect(frame.locator("#message")).to_contain_text("steptime run llama3.1 --wait")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(browser: Browser, site: str, scheme: str, view: str) -> None:
    with watched_page(browser, site, color_scheme=scheme) as watched:
        shown(watched, view)
        found = Axe().run(watched.page)
        assert not found.response["violations"], found.generate_report()


@pytest.mark.parametrize(("width", "height"), [(1366, 768), (400, 800)])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out(browser: Browser, site: str, view: str, width: int, height: int) -> None:
    with watched_page(browser, site) as watched:
        watched.page.set_viewport_size({"width": width, "height": height})
        shown(watched, view)
        wide = watched.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width


def shown(watched: Watched, view: str) -> None:
    """One view alone, without Airflow around it."""
    watched.page.goto(f"/steptime/{view}")
    expect(watched.page.locator("#summary")).not_to_have_text("Reading the metrics store …")
    if view == RUN:
        expect(watched.page.locator("#differences #overlay")).to_be_visible()
