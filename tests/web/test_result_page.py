"""The result page in a browser, in an iframe as Airflow shows it: what people see, and what they can do.

A page stands in for the Airflow UI: the same iframe with the same sandbox, and a router that can be asked.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from browser import Watched, chromium, watched_page
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from playwright.sync_api import Browser, FrameLocator, Page, expect

from steptime.recipes.models import Mode
from steptime.results.models import Check, Result, Verdict
from steptime.results.report import with_scaling_efficiency
from steptime.results.store import Store

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

Publish = Callable[..., Result]
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"

# What Airflow 3.3 does around a page of a plugin, without Airflow.
AIRFLOW = """<!doctype html><html class="light"><head><base href="/"><title>Airflow</title>
<link rel="icon" href="data:,"></head><body>
<iframe title="Step times" src="steptime/{query}" style="border:0;width:100%;height:860px"
        sandbox="allow-scripts allow-same-origin allow-forms allow-downloads"></iframe>
<script>
  const routed = {routed};
  if (routed) addEventListener("popstate", () => {{
    document.querySelector("iframe")?.remove();
    document.title = "routed to " + location.pathname;
  }});
</script></body></html>"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def site(pages: FastAPI, serve: Callable[[FastAPI], str]) -> str:
    airflow = FastAPI()
    airflow.mount("/steptime", pages)

    @airflow.get("/{path:path}", response_class=HTMLResponse)
    def ui(path: str, dag_run_id: str = "", routed: bool = True) -> str:
        if "tasks" in path:
            return f"<title>{path}</title><link rel=icon href='data:,'>"
        query = f"?dag_id=llama31&dag_run_id={dag_run_id}" if dag_run_id else ""
        return AIRFLOW.format(query=query, routed=json.dumps(routed))

    return serve(airflow)


@pytest.fixture
def watched(browser: Browser, site: str) -> Iterator[Watched]:
    with watched_page(browser, site, timezone_id="UTC") as watched:
        yield watched
        assert not watched.foreign
        assert not watched.complaints


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page


def opened(page: Page, address: str = "/plugin/step-times/steptime/") -> FrameLocator:
    page.goto(address)
    frame = page.frame_locator("iframe")
    expect(frame.locator("#summary")).not_to_have_text("Reading the metrics store …")
    return frame


def column(frame: FrameLocator, key: str) -> list[str]:
    """The cells of one column, as they are written."""
    index = frame.locator("thead th").evaluate_all(
        "(heads, key) => heads.findIndex((head) => head.dataset.key === key)", key
    )
    assert index >= 0, f"there is no column {key}"
    return frame.locator(f"tbody tr[data-job] td:nth-child({index + 1})").all_inner_texts()


def number(written: str) -> float:
    return float(written.replace(",", "").replace("−", "-"))


@pytest.fixture
def sweep(publish: Publish) -> None:
    """A DAG run at 1, 2 and 4 ranks, a checkpoint pair, and an older DAG run of another size."""
    for index, gpus in enumerate((1, 2, 4)):
        publish(f"run-{gpus}", gpus=gpus, dag_run_id="new", map_index=index)
    publish("save", mode=Mode.CHECKPOINT_SAVE, dag_run_id="new")
    publish("load", mode=Mode.CHECKPOINT_LOAD, dag_run_id="new")
    publish("older", size="small", gpus=2, step_times=[12.5] * 20, dag_run_id="old", submitted_at=1.78e9)


@pytest.mark.usefixtures("sweep")
def test_numbers_are_those_of_the_store(page: Page, store: Store) -> None:
    frame = opened(page)
    rows = {row["job_name"]: row for row in with_scaling_efficiency(store.results())}
    jobs = frame.locator("tbody tr[data-job]").evaluate_all("(rows) => rows.map((row) => row.dataset.job)")
    assert jobs == ["run-1", "run-2", "run-4", "save", "load", "older"]
    for key, digits in {
        "step_time_mean_s": 4,
        "tokens_per_s": 0,
        "scaling_efficiency_percent": 1,
        "checkpoint_save_s": 3,
    }.items():
        written = column(frame, key)
        assert [text == "" for text in written] == [rows[job][key] is None for job in jobs]
        for job, text in zip(jobs, written, strict=True):
            if text:
                assert number(text) == pytest.approx(rows[job][key], abs=0.51 * 10**-digits)
        # One number of decimals in a column, so that the digits stand in line.
        assert len({len(text.partition(".")[2]) for text in written if text}) == 1


@pytest.mark.usefixtures("sweep")
def test_runs_stand_below_their_dag_run_latest_first(page: Page) -> None:
    frame = opened(page)
    sections = frame.locator("tr.group").all_inner_texts()
    submitted = datetime.fromtimestamp(1.79e9, UTC)
    assert sections[0].startswith("llama31 · new")
    assert f"5 runs, submitted {submitted:%Y-%m-%d %H:%M}" in sections[0]
    assert sections[1].startswith("llama31 · old")
    expect(frame.locator("#summary")).to_have_text("6 runs")


@pytest.mark.usefixtures("sweep")
def test_a_dag_runs_tab_has_its_runs_only(page: Page) -> None:
    frame = opened(page, "/dags/llama31/runs/new/plugin/step-times-of-run?dag_run_id=new")
    expect(frame.locator("#summary")).to_have_text("5 runs")
    expect(frame.locator("tr.group")).to_have_count(0)


@pytest.mark.usefixtures("sweep")
def test_what_all_runs_share_is_said_once(page: Page) -> None:
    frame = opened(page)
    shared = frame.locator("#shared").inner_text()
    for words in ("llama3.1-25.04", "cpu", "weak", "local", "valid"):
        assert words in shared
    headings = frame.locator("thead").inner_text()
    assert "Workload" not in headings
    assert "Ranks" in headings


@pytest.mark.usefixtures("sweep")
def test_sorting_by_mouse_and_keyboard(page: Page) -> None:
    frame = opened(page)
    heading = frame.locator("th[data-key=step_time_mean_s] button")
    heading.click()
    times = [number(text) for text in column(frame, "step_time_mean_s")]
    assert times == sorted(times, reverse=True)
    expect(frame.locator("th[data-key=step_time_mean_s]")).to_have_attribute("aria-sort", "descending")
    expect(heading).to_be_focused()
    page.keyboard.press("Enter")
    times = [number(text) for text in column(frame, "step_time_mean_s")]
    assert times == sorted(times)
    page.keyboard.press("Enter")
    expect(frame.locator("tr.group")).to_have_count(2)
    expect(frame.locator("[aria-sort]")).to_have_count(0)


@pytest.mark.usefixtures("sweep")
def test_filters_are_kept_in_the_address(page: Page) -> None:
    frame = opened(page)
    frame.locator("#filter-mode").select_option(label="performance")
    frame.locator("#filter-gpus").select_option("2")
    expect(frame.locator("#summary")).to_have_text("2 of 6 runs")
    assert page.url.endswith("/plugin/step-times/steptime/?mode=performance&gpus=2")
    frame.locator("#search").fill("OLD")
    expect(frame.locator("tbody tr[data-job]")).to_have_count(1)
    frame.locator("#search").fill("none of them")
    expect(frame.locator("#message")).to_contain_text("No run matches these filters.")
    expect(frame.locator("#charts")).to_be_hidden()
    frame.locator("#message button").click()
    expect(frame.locator("#summary")).to_have_text("6 runs")
    assert page.url.endswith("/steptime/")


@pytest.mark.usefixtures("sweep")
def test_filters_come_back_from_the_address(page: Page) -> None:
    page.goto("/steptime/?gpus=2&mode=performance&unknown=1&size=")
    expect(page.locator("#summary")).to_have_text("2 of 6 runs")
    expect(page.locator("#filter-gpus")).to_have_value("2")


@pytest.mark.usefixtures("sweep")
def test_columns_without_values_are_left_out(page: Page) -> None:
    frame = opened(page)
    expect(frame.locator("th[data-key=checkpoint_save_s]")).to_have_count(1)
    frame.locator("#filter-mode").select_option(label="performance")
    expect(frame.locator("th[data-key=checkpoint_save_s]")).to_have_count(0)


@pytest.mark.usefixtures("sweep")
def test_charts_show_the_measured_points(page: Page, store: Store) -> None:
    frame = opened(page)
    means = {row["job_name"]: row["step_time_mean_s"] for row in store.results()}
    drawn = frame.locator("#step-time").evaluate(
        "(canvas) => Chart.getChart(canvas).data.datasets"
        ".map(({label, isIdeal, data}) => ({label, ideal: !!isIdeal, points: data.map(({x, y}) => [x, y])}))"
    )
    tiny = [series for series in drawn if series["label"] == "tiny"]
    measured, ideal = (
        next(one["points"] for one in tiny if one["ideal"] is wanted) for wanted in (False, True)
    )
    assert measured == [[gpus, means[f"run-{gpus}"]] for gpus in (1, 2, 4)]
    # Weak scaling: with linear scaling a step takes the same time at every scale.
    assert [y for _, y in ideal] == pytest.approx([means["run-1"]] * 3)
    for canvas in ("#step-time", "#throughput"):
        colours = frame.locator(canvas).evaluate(
            "(canvas) => new Set(new Uint32Array("
            "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"
        )
        assert colours > 10
    legend = frame.locator("#legend").get_by_role("button", name="small")
    legend.click()
    expect(legend).to_have_attribute("aria-pressed", "false")


def test_a_rejected_run_is_listed_with_its_reason_and_drawn_nowhere(page: Page, publish: Publish) -> None:
    failed = Check(name="loss_finite", passed=False, message="Step 3 has no finite loss.")
    publish("bad", verdict=Verdict(checks=(failed,)))
    frame = opened(page)
    expect(frame.locator("#summary")).to_have_text("1 run, 1 rejected")
    expect(frame.locator("td.note")).to_have_text("Step 3 has no finite loss.")
    expect(frame.locator("#charts")).to_be_hidden()


def test_a_run_that_counts_with_a_warning_says_so(page: Page, publish: Publish) -> None:
    noisy = Check(name="steady", passed=False, severity="warning", message="The steps vary by 40 %.")
    publish("noisy", verdict=Verdict(checks=(noisy,)))
    frame = opened(page)
    expect(frame.locator("#shared .warned")).to_have_text("valid")
    expect(frame.locator("td.note")).to_have_text("The steps vary by 40 %.")


def test_hostile_values_are_shown_as_text(
    page: Page, publish: Publish, make_result: Callable[..., Result]
) -> None:
    checks = (Check(name=HOSTILE, passed=False, message=HOSTILE),)
    plain = make_result("x")
    publish(
        HOSTILE,
        dag_run_id=HOSTILE,
        script=HOSTILE,
        verdict=Verdict(checks=checks),
        run=plain.run.model_copy(update={"cluster": HOSTILE}),
    )
    publish("harmless")
    frame = opened(page)
    row = frame.locator("tbody tr[data-job]", has_text="rejected")
    expect(row.locator("td.note")).to_have_text(HOSTILE)
    expect(frame.locator("tr.group", has_text=HOSTILE)).to_have_count(1)
    frame.locator("#filter-cluster").select_option(HOSTILE)
    frame.locator("tbody .open").click()
    expect(frame.locator("#detail-title small")).to_have_text(HOSTILE)
    expect(frame.locator(".checks li")).to_contain_text(HOSTILE)
    expect(frame.locator("#detail pre").first).to_have_text(HOSTILE)
    assert [frame.locator(element).count() for element in ("img", "#results script", "#detail script")] == [
        0
    ] * 3
    assert [place.title() for place in page.frames] == ["Airflow", "Step times"]


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


def test_an_empty_store_says_what_to_do(page: Page) -> None:
    frame = opened(page)
    expect(frame.locator("#message")).to_contain_text("steptime run llama3.1 --wait")
    expect(frame.locator("#csv")).to_be_disabled()


def test_a_dag_run_without_results_says_so(page: Page) -> None:
    frame = opened(page, "/dags/llama31/runs/new/plugin/step-times-of-run?dag_run_id=new")
    expect(frame.locator("#message")).to_contain_text("This DAG run has no results yet")


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


def test_ten_thousand_runs_are_made_as_people_scroll(page: Page, store: Store, publish: Publish) -> None:
    from steptime.results import schema
    from steptime.results.database import writing

    publish("run-0")
    (row,) = store.results()
    copies = [row | {"job_name": f"run-{n}", "submitted_at": 1.78e9 - n} for n in range(1, 10_050)]
    with writing(store.url) as connection:
        connection.execute(schema.runs.insert(), [copy | {"content_sha256": ""} for copy in copies])
    frame = opened(page)
    expect(frame.locator("#summary")).to_have_text("10,000 runs; older ones: steptime results")
    made = frame.locator("tbody tr[data-job]")
    assert made.count() < 1000
    before = made.count()
    frame.locator("#scroller").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    expect(made).not_to_have_count(before)
    frame.locator("#search").fill("run-9876")
    expect(made).to_have_count(1)


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
