"""What people do on the result page inside Airflow: open a record, follow links, refresh, save as CSV."""

import csv
import re
from collections.abc import Callable
from typing import Any

import pytest
from browser import watched_page
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect
from web.framed import column, opened

from steptime.results.models import Result
from steptime.results.store import Store

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

Publish = Callable[..., Result]


@pytest.mark.usefixtures("sweep")
def test_the_record_of_a_run_opens_and_closes_by_keyboard(page: Page, store: Store) -> None:
    frame = opened(page)
    first, second = (frame.locator(".open").nth(index) for index in range(2))
    first.focus()
    page.keyboard.press("ArrowDown")
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    dialog = frame.locator("#detail")
    expect(dialog).to_be_visible()
    expect(frame.locator("#detail-title")).to_contain_text("run-2")
    drawn = frame.locator("#steps").evaluate(
        "(canvas) => Chart.getChart(canvas).data.datasets.filter(({type}) => type === 'bar')"
        ".map(({data}) => data.filter((value) => value !== null))"
    )
    times = [step["step_time_s"] for step in store.steps("run-2")]
    assert sorted(drawn) == sorted([times[10:], times[:10]])
    expect(dialog).to_contain_text("job succeeded")
    expect(dialog).to_contain_text("torch 2.13.0")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(second).to_be_focused()


@pytest.mark.usefixtures("sweep")
def test_a_link_to_a_log_asks_airflows_router(page: Page) -> None:
    frame = opened(page)
    frame.locator("tr[data-job=run-2]").get_by_role("link", name="Log").click()
    page.wait_for_function("document.title.startsWith('routed')")
    assert page.title() == "routed to /dags/llama31/runs/new/tasks/wait/mapped/1"


@pytest.mark.usefixtures("sweep")
def test_a_link_to_a_log_works_where_no_router_answers(page: Page) -> None:
    frame = opened(page, "/plugin/step-times/steptime/?routed=false")
    frame.locator("tr[data-job=run-2]").get_by_role("link", name="Log").click()
    page.wait_for_function("document.title === 'dags/llama31/runs/new/tasks/wait/mapped/1'")


@pytest.mark.usefixtures("sweep")
def test_a_link_opens_in_a_new_tab_with_the_usual_key(page: Page) -> None:
    frame = opened(page)
    with page.expect_popup() as popup:
        frame.locator("tr[data-job=run-2]").get_by_role("link", name="Log").click(modifiers=["Control"])
    popup.value.wait_for_url("**/tasks/wait/mapped/1")
    expect(frame.locator("#results")).to_be_visible()


@pytest.mark.usefixtures("sweep")
def test_airflows_theme_is_followed(page: Page) -> None:
    frame = opened(page)
    expect(frame.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    page.evaluate("document.documentElement.className = 'dark'")
    expect(frame.locator("body")).to_have_css("background-color", "rgb(22, 29, 45)")
    page.evaluate("document.documentElement.className = 'light'")
    expect(frame.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")


@pytest.mark.usefixtures("sweep")
def test_airflows_time_zone_is_followed(page: Page) -> None:
    frame = opened(page)
    expect(frame.locator("th[data-key=ended_at] small")).to_have_text("UTC")
    before = column(frame, "ended_at")[0]
    page.evaluate("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")
    expect(frame.locator("th[data-key=ended_at] small")).to_have_text("Asia/Tokyo")
    hours = [int(re.search(r"(\d\d):\d\d$", text)[1]) for text in (before, column(frame, "ended_at")[0])]
    assert (hours[0] + 9) % 24 == hours[1]


@pytest.mark.usefixtures("sweep")
def test_new_results_come_by_refresh(page: Page, publish: Publish) -> None:
    frame = opened(page)
    publish("newer", gpus=8, dag_run_id="newest", submitted_at=1.795e9)
    frame.locator("#refresh").click()
    expect(frame.locator("#summary")).to_have_text("7 runs")
    expect(frame.locator("tr[data-job]").first).to_have_attribute("data-job", "newer")


@pytest.mark.usefixtures("sweep")
def test_csv_has_every_column_of_the_runs_shown(page: Page, store: Store, tmp_path: Any) -> None:
    frame = opened(page)
    frame.locator("#filter-mode").select_option(label="performance")
    with page.expect_download() as download:
        frame.locator("#csv").click()
    assert download.value.suggested_filename == "steptime-results.csv"
    download.value.save_as(tmp_path / "results.csv")
    with (tmp_path / "results.csv").open(newline="") as stream:
        read = {row["job_name"]: row for row in csv.DictReader(stream)}
    expected = {row["job_name"]: row for row in store.results(mode="performance")}
    assert read.keys() == expected.keys()
    for name, row in expected.items():
        for key, value in row.items():
            if isinstance(value, bool):
                assert read[name][key] == str(value).lower()
            elif isinstance(value, float):
                assert float(read[name][key]) == value
            else:
                assert read[name][key] == ("" if value is None else str(value))


@pytest.mark.usefixtures("sweep")
def test_an_ended_session_and_a_failed_store_are_told(
    browser: Browser, site: str, pages: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched_page(browser, site) as watched:
        frame = opened(watched.page)
        monkeypatch.setenv("STEPTIME_STORE_URL", "mysql://nowhere")
        frame.locator("#refresh").click()
        expect(frame.locator("#message")).to_contain_text("STEPTIME_STORE_URL")
        pages.dependency_overrides.clear()
        frame.locator("#refresh").click()
        expect(frame.locator("#message")).to_contain_text("log in to Airflow again")
