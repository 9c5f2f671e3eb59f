"""The result tables in the real Airflow UI, with measured results, in headless Chromium after a login."""

import json
from importlib import resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from browser import count_colours, logged_in
from mail_server import mail_server
from playwright.sync_api import expect

from end_to_end.driving import wait_until
from steptime.airflow_addresses import dag_run_path

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.trainer,  # the pages show its results
    pytest.mark.browser,
    pytest.mark.timeout(3000),  # includes the main job if this test needs it first
]

NAV = "/plugin/step-times/steptime/?view=runs"
CELLS_BY_JOB = """(rows) => Object.fromEntries(
    rows.map((row) => [row.dataset.job, [...row.cells].map((cell) => cell.innerText)])
)"""


@pytest.fixture(scope="module")
def rows(main_job):
    """Return the results of the main job as the command line printed them, by job name."""
    assert main_job.returncode == 0, main_job.stderr
    return {row["job_name"]: row for row in json.loads(main_job.stdout)["results"]}


@pytest.fixture(scope="module")
def session(airflow):
    with logged_in(airflow.url, airflow.user, airflow.password) as watched:
        yield watched


@pytest.fixture
def page(session):
    yield session.page
    assert not session.foreign
    assert not [complaint for complaint in session.complaints if "/steptime/" in complaint]


def shown(page):
    frame = page.frame_locator("iframe[title='Step times']")
    frame.locator("tbody tr[data-job]").first.wait_for()
    return frame


def on_two_ranks(rows):
    return next(row for row in rows.values() if (row["mode"], row["gpus"]) == ("performance", 2))


def run_address(rows):
    row = next(iter(rows.values()))
    return dag_run_path(row["dag_id"], row["dag_run_id"])


def test_anonymous_requests_get_401_on_every_route(airflow, rows):
    static = Path(str(resources.files("steptime.pages"))) / "static"
    files = [path.relative_to(static).as_posix() for path in static.rglob("*") if path.is_file()]
    assert "main.js" in files
    addresses = [
        "",
        "api/results",
        "api/comparison?since=0",
        *(f"api/runs/{job}" for job in rows),
        *(f"static/{name}" for name in files),
    ]
    with httpx.Client(base_url=f"{airflow.url}/steptime/", timeout=60) as anonymous:
        for address in addresses:
            for headers in ({}, {"Authorization": "Bearer forged"}, {"Cookie": "_token=forged"}):
                response = anonymous.get(address, headers=headers)
                assert response.status_code in ((401, 403) if headers else (401,)), address
                assert not any(job in response.text for job in rows)


def test_the_table_in_the_navigation_has_the_measured_numbers_and_how_to_repeat_them(page, rows):
    page.goto("/")
    page.get_by_role("link", name="Step times").click()
    page.frame_locator("iframe[title='Step times']").get_by_role("link", name="Runs").click()
    frame = shown(page)
    keys = frame.locator("thead th").evaluate_all("(heads) => heads.map((head) => head.dataset.key)")
    cells = frame.locator("tbody tr[data-job]").evaluate_all(CELLS_BY_JOB)
    written = {job: dict(zip(keys, texts, strict=True)) for job, texts in cells.items()}
    for job, row in rows.items():
        for key in ("step_time_mean_s", "tokens_per_s", "checkpoint_save_s"):
            text = written[job][key].strip()  # decimals are aligned with spaces
            if row[key] is None:
                assert text == ""
            else:
                unit_of_last_place = 10.0 ** -len(text.partition(".")[2])
                assert float(text.replace(",", "")) == pytest.approx(row[key], abs=0.51 * unit_of_last_place)

    job = on_two_ranks(rows)["job_name"]
    frame.locator(f"tr[data-job='{job}'] .open").click()
    dialog = frame.locator("#detail")
    expect(dialog).to_contain_text("steptime run llama3.1-25.04 --size tiny")
    # They are one folded line if all passed; a warning on a busy machine unfolds it.
    expect(dialog.locator(".checks .passed").first).to_be_attached()
    expect(dialog.locator(".checks .failed")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_the_tab_of_a_dag_run_draws_its_runs_and_leads_to_the_log_of_a_training(page, rows):
    page.goto(run_address(rows))
    # By its address: the page in the navigation has the same name and may appear before the tab.
    page.locator("a[href*='step-times-of-run']").click()
    frame = shown(page)
    jobs = frame.locator("tbody tr[data-job]")
    assert set(jobs.evaluate_all("(all) => all.map((one) => one.dataset.job)")) == set(rows)
    assert count_colours(frame.locator("#step-time-0")) > 10, "it is blank"

    row = on_two_ranks(rows)
    frame.locator(f"tr[data-job='{row['job_name']}']").get_by_role("link", name="Log").click()
    page.wait_for_url(f"**/tasks/{row['task_id']}/mapped/{row['map_index']}")
    expect(page.locator("body")).to_contain_text(f"job {row['job_name']}")
    expect(page.locator("body")).to_contain_text("7 of 0-7")
    page.go_back()
    shown(page)


def test_the_trigger_form_sends_what_was_filled_in(airflow, page):
    page.goto("/dags/steptime_llama3.1-25.04/runs")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog").filter(has_text="Trigger Dag - steptime_llama3.1-25.04")
    size = form.get_by_role("combobox", name="Size")
    expect(form).not_to_contain_text("null")
    size.click()
    page.get_by_role("option", name="tiny", exact=True).click()
    form.locator("#element_gpus").fill("3")  # no document has this: nothing trains
    form.get_by_role("button", name="Machines", exact=True).click()
    form.locator("#element_cuda_graphs").fill("off")
    form.get_by_role("button", name="Trigger", exact=True).click()
    page.wait_for_url("**/runs/manual__*")

    run_id = unquote(urlsplit(page.url).path.rpartition("/")[2])
    run = airflow.client.dag_run("steptime_llama3.1-25.04", run_id)
    assert airflow.ended(run).state == "failed"
    task = airflow.task(run, "check_params")
    assert task is not None
    why = "unknown GPU count '3' of llama3.1-25.04 tiny on cpu: did you mean '2'? Valid are: 1, 2, 4."
    lines = airflow.client.log(run.dag_id, run.dag_run_id, task)
    assert [line.error for line in lines if line.error] == [why]
    assert not any(line.error_detail for line in lines), "a traceback helps nobody to ask for something else"
    assert task.try_number == 1
    page.goto(f"{dag_run_path(run.dag_id, run.dag_run_id)}/plugin/step-times-of-run")
    told = page.frame_locator("iframe[title='Step times']").locator("#message")
    expect(told).to_have_text(f"Ended without results: check_params failed: {why}")
    sent = airflow.params(run)
    assert (sent["size"], sent["gpus"], sent["cuda_graphs"]) == ("tiny", "3", "off")
    assert sent["dtype"] is None, "left alone"


def test_this_week_is_sent_by_mail(page, airflow, rows):
    """The button appears once there is a connection; the mail has the page as a file with its data."""
    page.goto(NAV)
    frame = shown(page)
    frame.get_by_role("link", name="This week").click()
    expect(frame.locator("#report")).to_be_visible()
    expect(frame.get_by_role("button", name="Send …")).to_be_hidden()
    extra = {"disable_ssl": True, "disable_tls": True, "from_email": "steptime@example.com"}
    connection = {"connection_id": "smtp_default", "conn_type": "smtp", "extra": json.dumps(extra)}
    try:
        with mail_server() as (mails, port):
            at = {"host": "127.0.0.1", "port": port}
            made = airflow.answer("POST", "/api/v2/connections", connection | at)
            assert made.is_success, made.text
            page.reload()
            frame.get_by_role("button", name="Send …").click()
            frame.get_by_label("To").fill("one@example.com, two@example.com")
            frame.get_by_role("button", name="Send", exact=True).click()
            expect(frame.locator("#send")).to_have_text("It is sent by a DAG run.")
            [mail] = wait_until("the mail", lambda: list(mails) or None)
    finally:
        airflow.answer("DELETE", "/api/v2/connections/smtp_default")
    assert mail["To"] == "one@example.com, two@example.com"
    [file] = [part for part in mail.walk() if part.get_filename()]
    assert file.get_filename() == "steptime-report.html"
    content = file.get_payload(decode=True)
    assert isinstance(content, bytes)
    assert on_two_ranks(rows)["job_name"] in content.decode()
