"""What people do on the result page inside Airflow: open a record, follow links, refresh, save as CSV."""

import csv
import re

import pytest
from browser import watched_page
from pages.framed import RUNS, column, ending, opened
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("sweep")
def test_the_record_of_a_run_opens_and_closes_by_keyboard(page, store):
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
        "(canvas) => Chart.getChart(canvas).data.datasets.filter(({label}) => label.startsWith('step time'))"
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
def test_a_run_has_an_address_and_its_checks_are_one_line(page):
    frame = opened(page, f"{RUNS}&run=run-4")
    expect(frame.locator("#detail-title")).to_contain_text("run-4")
    checks = frame.locator(".checks li")
    expect(checks).not_to_be_visible()
    frame.get_by_text("The check passed").click()
    expect(checks).to_be_visible()
    frame.locator("#close").click()
    expect(frame.locator("#detail")).to_be_hidden()
    expect(page).to_have_url(ending(RUNS))


def test_a_run_is_laid_beside_another(page, publish):
    publish("usual", step_times=[1.0] * 20)
    publish("slow", step_times=[1.5123] * 20, environment={"OMP_NUM_THREADS": "2"})
    frame = opened(page, f"{RUNS}&run=slow")
    frame.locator("#other").fill("usu")
    page.keyboard.press("Enter")
    beside = frame.locator("#differences")
    expect(beside.locator("tr", has_text="Step time, s").first).to_have_text("Step time, s1.5121.000+51.2 %")
    expect(beside.locator("tr", has_text="OMP_NUM_THREADS")).to_contain_text("2")
    drawn = frame.locator("#overlay").evaluate(
        "(canvas) => Chart.getChart(canvas).data.datasets.map(({label, data}) => [label, data.at(-1).y])"
    )
    assert drawn == [["difference, %", pytest.approx(51.23)]]
    expect(page).to_have_url(ending("run=slow&with=usu"))
    page.reload()
    expect(beside).to_contain_text("slow beside usual")
    publish("wider", gpus=4)
    frame = opened(page, f"{RUNS}&run=slow&with=wider")
    expect(beside).to_contain_text("Their times are not for comparison: gpus 2 and 4")
    expect(frame.locator("#overlay")).to_have_count(0)


@pytest.mark.usefixtures("sweep")
def test_a_link_to_a_log_asks_airflows_router(page):
    frame = opened(page)
    frame.locator("tr[data-job=run-2]").get_by_role("link", name="Log").click()
    page.wait_for_function("document.title.startsWith('routed')")
    assert page.title() == "routed to /dags/steptime_llama3.1-25.04/runs/new/tasks/wait/mapped/1"


@pytest.mark.usefixtures("sweep")
def test_airflows_theme_is_followed(page):
    frame = opened(page)
    expect(frame.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    page.evaluate("document.documentElement.className = 'dark'")
    expect(frame.locator("body")).to_have_css("background-color", "rgb(22, 29, 45)")
    page.evaluate("document.documentElement.className = 'light'")
    expect(frame.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")


@pytest.mark.usefixtures("sweep")
def test_airflows_time_zone_is_followed(page):
    frame = opened(page)
    expect(frame.locator("th[data-key=ended_at] small")).to_have_text("UTC")
    before = column(frame, "ended_at")[0]
    page.evaluate("localStorage.setItem('timezone', JSON.stringify('Asia/Tokyo'))")
    expect(frame.locator("th[data-key=ended_at] small")).to_have_text("Asia/Tokyo")
    hours = [int(re.search(r"(\d\d):\d\d$", text)[1]) for text in (before, column(frame, "ended_at")[0])]
    assert (hours[0] + 9) % 24 == hours[1]


@pytest.mark.usefixtures("sweep")
def test_new_results_come_by_refresh(page, publish):
    frame = opened(page)
    publish("newer", gpus=8, dag_run_id="newest", submitted_at=1.795e9)
    frame.locator("#refresh").click()
    expect(frame.locator("#summary")).to_have_text("7 runs")
    expect(frame.locator("tr[data-job]").first).to_have_attribute("data-job", "newer")


@pytest.mark.usefixtures("sweep")
def test_csv_has_the_runs_shown(page, store):
    frame = opened(page)
    frame.locator("#filter-mode").select_option(label="performance")
    expect(frame.locator("#summary")).to_have_text("4 of 6 runs")
    with page.expect_download() as download:
        frame.locator("#csv").click()
    assert download.value.suggested_filename == "steptime-results.csv"
    with download.value.path().open(newline="") as stream:
        read = {row["job_name"]: float(row["step_time_mean_s"]) for row in csv.DictReader(stream)}
    assert read == {row["job_name"]: row["step_time_mean_s"] for row in store.results(mode="performance")}


@pytest.mark.usefixtures("sweep")
def test_an_ended_session_and_a_failed_store_are_told(browser, site, pages, monkeypatch):
    with watched_page(browser, site) as watched:
        frame = opened(watched.page)
        monkeypatch.setenv("STEPTIME_STORE_URL", "mysql://nowhere")
        frame.locator("#refresh").click()
        expect(frame.locator("#message")).to_contain_text("STEPTIME_STORE_URL")
        monkeypatch.delenv("STEPTIME_STORE_URL")
        frame.locator("#refresh").click()
        expect(frame.locator("#summary")).to_have_text("6 runs")
        expect(frame.locator("#message")).to_be_hidden()
        pages.dependency_overrides.clear()
        frame.locator("#refresh").click()
        expect(frame.locator("#message")).to_contain_text("log in to Airflow again")
