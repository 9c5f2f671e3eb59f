"""The pages of trials: the list, one trial with its chart, in the tab of its DAG run, and in the report."""

from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import count_colours, watched_page
from called import steptime
from fastapi.testclient import TestClient
from pages.framed import NAVIGATION, RUNS, column, opened
from pages.test_states import BADLY_DRAWN, STICKING_OUT
from playwright.sync_api import expect
from stored_trial import DAG_RUN, OUT_OF_MEMORY, StoredTrial, run_rounds

TOGETHER = "/".join(DAG_RUN)
TAB = "/dags/{0}/runs/{1}/plugin/step-times-of-run?dag_id={0}&dag_run_id={1}"


@pytest.fixture
def trial(store, make_result, auth_manager):
    """Return a trial of four rounds in which one variant is slower and another cannot run."""
    auth_manager.readable |= {DAG_RUN[0]}
    run_rounds(stored := StoredTrial(store, make_result), {"default": 0.2, "ring": 0.21, "broken": None}, 4)
    return stored


def test_the_page_has_the_answer_of_the_command(pages, trial, capsys):
    client = TestClient(pages)
    told = client.get("/api/trial", params={"together": TOGETHER}).json()
    assert told["answer"] == " ".join(told["sentences"]) == trial.answer().sentence
    assert steptime("trial", "show", "nccl-ring", "--format", "csv") == 0
    assert client.get("/api/trial.csv", params={"together": TOGETHER}).text == capsys.readouterr().out
    (listed,) = client.get("/api/trials").json()["trials"]
    assert (listed["together"], listed["sentences"]) == (TOGETHER, told["sentences"])
    assert client.get("/api/trials", params={"since": 1.9e9}).json()["trials"] == []


def test_a_trial_is_shown_to_those_who_may_read_its_dag(pages, trial, auth_manager):
    auth_manager.readable -= {DAG_RUN[0]}
    client = TestClient(pages)
    assert client.get("/api/trials").json()["trials"] == []
    assert client.get("/api/trial", params={"together": TOGETHER}).json()["trial"] is None
    assert len(client.get("/api/trial.csv", params={"together": TOGETHER}).text.splitlines()) == 1


@pytest.mark.browser
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("trial")
def test_from_the_list_to_a_trial_and_to_the_runs_of_a_variant_by_keyboard(watched):
    page = watched.page
    frame = opened(page, f"{NAVIGATION}?view=trials")
    expect(frame.locator("#summary")).to_have_text("1 trial, the newest first.")
    row = frame.locator("#trials tbody tr")
    expect(row).to_contain_text("ring is 4.8 % slower than default (")
    row.get_by_role("link", name="nccl-ring").focus()
    page.keyboard.press("Enter")
    expect(frame.locator("#summary strong")).to_contain_text("ring is 4.8 % slower than default (")
    expect(frame.locator("#view")).to_contain_text(f"broken cannot run: {OUT_OF_MEMORY}.")
    assert column(frame, "variant") == ["default", "ring", "broken", "tensor_parallel=3"]
    assert column(frame, "status") == ["best", "slower", "cannot run", "left out"]
    assert column(frame, "difference_percent")[1] == "+4.8"
    assert count_colours(frame.locator("#by-round")) > 2
    assert "ring 4.8 % (" in (frame.locator("#by-round").get_attribute("aria-label") or "")
    with page.expect_download() as download:
        frame.get_by_role("link", name="Download CSV").click()
    assert Path(download.value.path()).read_text().startswith("variant,status,runs,difference_percent")
    frame.get_by_role("link", name="default", exact=True).focus()
    page.keyboard.press("ArrowDown")
    expect(frame.get_by_role("link", name="ring", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(frame.locator("#views [aria-current]")).to_have_text("Runs")
    expect(frame.locator("tr[data-job]")).to_have_count(4)
    page.go_back()
    expect(frame.locator("#summary strong")).to_contain_text("ring is 4.8 % slower")
    frame.get_by_role("link", name="DAG run").click()
    expect(page).to_have_title(f"routed to /dags/{DAG_RUN[0]}/runs/{DAG_RUN[1]}")


@pytest.mark.browser
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("trial")
def test_the_tab_of_its_dag_run_begins_with_the_answer(watched):
    frame = opened(watched.page, TAB.format(*DAG_RUN))
    expect(frame.locator("#views a")).to_have_text(["Trial", "This DAG run"])
    expect(frame.locator("#summary strong")).to_contain_text("ring is 4.8 % slower than default (")
    frame.get_by_role("link", name="This DAG run").click()
    expect(frame.locator("tr[data-job]")).not_to_have_count(0)
    frame = opened(watched.page, TAB.format(DAG_RUN[0], "none"))
    expect(frame.locator("#message")).to_have_text("No run of this trial has a result yet.")


@pytest.mark.browser
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("trial")
@pytest.mark.parametrize(("scheme", "width", "height"), [("light", 1366, 768), ("dark", 400, 800)])
def test_axe_finds_nothing_on_the_pages_and_in_the_report(browser, site, tmp_path, scheme, width, height):
    assert steptime("report", "--since", "2020-01-01", "-o", str(tmp_path / "report.html")) == 0
    text = (tmp_path / "report.html").read_text()
    assert "Trial nccl-ring: `ring` is 4.8 % slower than `default` (" in text, "for readers without scripts"
    file = (tmp_path / "report.html").as_uri()
    states = {
        "/steptime/?view=trials": "#trials tbody tr",
        f"/steptime/?view=trial&together={TOGETHER}": "tr[data-variant]",
        file: "[aria-label=Trials] li",
        f"{file}#view=trial&together={TOGETHER}": "tr[data-variant]",
    }
    found = {}
    with watched_page(browser, site, color_scheme=scheme, timezone_id="UTC") as watched:
        page = watched.page
        page.set_viewport_size({"width": width, "height": height})
        for address, drawn in states.items():
            page.goto("about:blank")  # another fragment alone would load nothing
            page.goto(address)
            expect(page.locator(drawn).first).to_contain_text("default")
            rules = [
                f"{one['id']}: {one['nodes'][0]['html']}" for one in Axe().run(page).response["violations"]
            ]
            wrong = [*rules, *page.evaluate(STICKING_OUT), *page.evaluate(BADLY_DRAWN)]
            found |= {address: wrong} if wrong else {}
    assert not found
    assert not watched.complaints


@pytest.mark.browser
@pytest.mark.usefixtures("trial")
def test_a_run_of_a_trial_runs_again_with_the_later_ones_that_were_skipped(watched, auth_manager):
    auth_manager.editable |= {DAG_RUN[0]}
    states = ("success", "skipped", "skipped")
    tasks = [
        {"task_id": f"performance.{name}", "map_index": index, "state": state}
        for index, state in enumerate(states)
        for name in ("submit", "wait")
    ]
    asked = []

    def clear(route):
        asked.append(route.request.post_data_json)
        route.fulfill(json={"task_instances": [], "total_entries": 0})

    watched.page.route(
        "**/taskInstances?**",
        lambda route: route.fulfill(json={"task_instances": tasks, "total_entries": len(tasks)}),
    )
    watched.page.route("**/clearTaskInstances", clear)
    frame = opened(watched.page, f"{RUNS}&run=trial-01")
    frame.get_by_role("button", name="Run this cell again …").click()
    frame.get_by_role("button", name="Run again", exact=True).click()
    expect(frame.locator(".again [role=status]")).to_contain_text("It runs again")
    assert asked[0]["task_ids"] == [[task["task_id"], task["map_index"]] for task in tasks]
