"""The result page in a browser, in an iframe as Airflow shows it: what people see of runs and can find."""

import contextlib
import csv
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import stored
from browser import count_colours
from pages.framed import RUNS, TAB, column, ending, number, opened
from playwright.sync_api import Error, expect
from sixty_cells import BELOW, LAST, STEP, SWEEP_DAG, cells

from steptime.clusters.base import JobState
from steptime.measure.record import format_record, make_record
from steptime.recipes.published import published_performance
from steptime.store.run_models import Check, Result, Verdict
from steptime.store.run_records import EarlierAttempt

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

Publish = Callable[..., Result]
DRAWN = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
POINTS = """(canvas) => Chart.getChart(canvas).data.datasets.map(({label, data, pointStyle}) =>
    ({label, style: pointStyle, points: data.map(({x, y}) => [x, y])}))"""
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


@pytest.mark.usefixtures("sweep")
def test_numbers_are_those_of_the_store(page, store):
    frame = opened(page)
    rows = {row["job_name"]: row for row in store.results()}
    jobs = frame.locator("tbody tr[data-job]").evaluate_all("(rows) => rows.map((row) => row.dataset.job)")
    assert jobs == ["run-1", "run-2", "run-4", "save", "load", "older"]
    for key, digits in {
        "step_time_mean_s": 4,
        "tokens_per_s": 0,
        "scaling_efficiency_percent": 1,
        "checkpoint_save_s": 3,
        "checkpoint_blocked_s": 3,
        "gpu_hours": 4,
    }.items():
        written = column(frame, key)
        assert [text == "" for text in written] == [rows[job][key] is None for job in jobs]
        for job, text in zip(jobs, written, strict=True):
            if text:
                decimals = digits if job != "older" else len(text.partition(".")[2])
                assert number(text) == pytest.approx(rows[job][key], abs=0.51 * 10**-decimals)
        # One number of decimals in a series, so that the digits are aligned.
        assert len({len(text.partition(".")[2]) for text in written[:3] if text}) <= 1


@pytest.mark.usefixtures("sweep")
def test_runs_stand_below_their_dag_run_latest_first(page):
    frame = opened(page)
    (section,) = frame.locator("tr.group").all_inner_texts()
    submitted = datetime.fromtimestamp(1.79e9, UTC)
    assert section.startswith("steptime_llama3.1-25.04 · new")
    assert f"5 runs, submitted {submitted:%Y-%m-%d %H:%M}" in section
    # A DAG run with only one run has no heading.
    expect(frame.locator("tr[data-job]").last).to_have_attribute("data-job", "older")
    expect(frame.locator("#summary")).to_have_text("6 runs")


@pytest.fixture
def weekly_sweep(store, make_result, auth_manager):
    """Publish two months of a sweep of two cells, which the user may read; the last run of one is slower."""
    auth_manager.readable |= {"steptime_sweep"}
    for week in range(9):
        for gpus in (1, 2):
            slower = 1.2 if (week, gpus) == (8, 2) else 1.0
            run = f"{gpus}-{week}"
            times, at = [gpus * slower] * 20, 1.78e9 + week * 604_800
            usual = make_result(run, dag_run_id=f"week-{week}")
            of_sweep = {
                "sweep": "nightly",
                "dag_id": "steptime_sweep",
            }
            provenance = usual.submitted.provenance.model_copy(update=of_sweep)
            stored.publish(
                store, make_result(run, gpus=gpus, step_times=times, submitted_at=at, provenance=provenance)
            )


@pytest.mark.usefixtures("weekly_sweep")
def test_the_tab_of_a_sweep_has_its_cells_their_verdicts_and_its_cost(page):
    frame = opened(page, "/dags/steptime_sweep/runs/week-8/plugin/x?dag_id=steptime_sweep&dag_run_id=week-8")
    expect(frame.locator("#summary strong")).to_contain_text(
        "2 cells: 1 slower, 0 faster, 1 unchanged; worst"
    )
    expect(frame.locator("#summary")).to_have_text(re.compile(r"; 1 waits for confirmation runs\.$"))
    expect(frame.locator(".totals")).to_contain_text(
        "2 cells · 2 runs · 0.0321 GPU-hours · in the queue for 2 s"
    )
    assert column(frame, "verdict") == ["unchanged", "slower, suspected"]
    assert column(frame, "run_change_percent") == ["0.0", "+20.0"]
    expect(frame.locator(".remarks li")).to_have_text(
        re.compile(r"^tiny·fp32·2: slower by 20\.0 % since \d{4}-\d\d-\d\d, suspected")
    )


@pytest.mark.usefixtures("weekly_sweep")
def test_cells_of_a_sweep_stand_below_it_with_what_they_took(page):
    frame = opened(page)
    sections = frame.locator("tr.group").all_inner_texts()
    assert len(sections) == 9
    assert sections[0].startswith("sweep nightly · week-8")
    assert "2 runs, submitted " in sections[0]
    assert sections[0].endswith("· 0.0321 GPU-hours · queued 1.5 s at most")
    frame.get_by_role("link", name="week-8").click()
    page.wait_for_function("document.title.startsWith('routed')")
    assert page.title() == "routed to /dags/steptime_sweep/runs/week-8"


@pytest.mark.usefixtures("sweep")
def test_sorting_by_mouse_and_keyboard(page):
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
    expect(frame.locator("tr.group")).to_have_count(1)
    expect(frame.locator("[aria-sort]")).to_have_count(0)


@pytest.mark.usefixtures("sweep")
def test_a_late_answer_is_not_drawn_over_a_newer_one(page):
    frame = opened(page)
    held = []
    settled = []

    def hold(route):
        held.append(route)

    def settle(request):
        settled.append(request)

    page.on("requestfinished", settle)
    page.on("requestfailed", settle)
    page.route(re.compile(r"/api/results\?mode=performance&limit="), hold)
    frame.locator("#filter-mode").select_option(label="performance")
    frame.locator("#filter-gpus").select_option("2")
    expect(frame.locator("#summary")).to_have_text("2 of 6 runs")

    (late,) = held
    with contextlib.suppress(Error):  # the page may have aborted it
        late.fulfill(response=late.fetch())
    while late.request not in settled:
        page.wait_for_timeout(20)
    frame.locator("body").evaluate(DRAWN)
    assert frame.locator("#summary").inner_text() == "2 of 6 runs"


@pytest.mark.usefixtures("sweep")
def test_filters_are_kept_in_the_address(page):
    frame = opened(page)
    frame.locator("#filter-mode").select_option(label="performance")
    frame.locator("#filter-gpus").select_option("2")
    expect(frame.locator("#summary")).to_have_text("2 of 6 runs")
    expect(page).to_have_url(ending("/plugin/step-times/steptime/?view=runs&mode=performance&gpus=2"))
    frame.locator("#search").fill("OLD")
    expect(frame.locator("tbody tr[data-job]")).to_have_count(1)
    typed_at = frame.locator("#search").bounding_box()
    frame.locator("#search").fill("none of them")
    expect(frame.locator("main")).to_contain_text("No run matches these filters.")
    expect(frame.locator("#charts")).to_be_hidden()
    assert frame.locator("#search").bounding_box() == typed_at, "it moves while somebody types in it"
    frame.get_by_role("button", name="Reset filters").click()
    expect(frame.locator("#summary")).to_have_text("6 runs")
    expect(page).to_have_url(ending("/steptime/?view=runs"))


def test_runs_are_selected_by_image_driver_variable_and_node(page, site, publish, make_result):
    for name, image, node in (("old", "nemo:25.11.01", "h008"), ("new", "nemo:26.02.01", "h009")):
        environment = {"NCCL_ALGO": name.capitalize()}
        record = json.loads(make_result(name, environment=environment).record) | {"nodes": [node]}
        record["versions"]["nvidia_driver"] = f"570.{len(image)}.{name}"
        record["provenance"]["staged"]["image"] = image
        publish(name, environment=environment, record=format_record(record))
    frame = opened(page)
    summary = frame.locator("#summary")
    expect(summary).to_have_text("2 runs")
    frame.get_by_label("Image").select_option("nemo:26.02.01")
    expect(summary).to_have_text("1 of 2 runs")
    expect(page).to_have_url(ending("?view=runs&image=nemo%3A26.02.01"))
    frame.get_by_role("button", name="Reset filters").click()
    expect(summary).to_have_text("2 runs")
    frame.get_by_label("NVIDIA driver").select_option("570.13.old")
    expect(summary).to_have_text("1 of 2 runs")
    expect(frame.locator("tr[data-job]")).to_have_attribute("data-job", "old")
    frame.get_by_role("button", name="Reset filters").click()
    expect(summary).to_have_text("2 runs")
    frame.get_by_label("Node", exact=True).click()
    page.keyboard.type("h008")
    page.keyboard.press("Enter")
    expect(summary).to_have_text("1 of 2 runs")
    expect(frame.locator("tr[data-job]")).to_have_attribute("data-job", "old")
    offered = frame.locator("#known-variable option").evaluate_all("(all) => all.map(({value}) => value)")
    assert offered == ["NCCL_ALGO=Old", "OMP_NUM_THREADS=1"]
    frame.get_by_role("button", name="Reset filters").click()
    expect(summary).to_have_text("2 runs")
    frame.locator("#search").fill("nccl_algo=new h009")
    expect(summary).to_have_text("1 of 2 runs")
    expect(frame.locator("tr[data-job]")).to_have_attribute("data-job", "new")
    href = frame.locator("#csv").get_attribute("href")
    [exported] = csv.DictReader(page.request.get(f"{site}/steptime/{href}").text().splitlines())
    expected = ("nemo:26.02.01", "570.13.new", "OMP_NUM_THREADS=1, NCCL_ALGO=New", "h009")
    assert tuple(exported[name] for name in ("image", "nvidia_driver", "variables", "nodes")) == expected


@pytest.mark.usefixtures("sweep")
def test_the_tab_of_a_dag_run_shows_the_measured_points(page, store):
    frame = opened(page, TAB)
    means = {row["job_name"]: row["step_time_mean_s"] for row in store.results()}
    drawn = {one["label"]: one["points"] for one in frame.locator("#step-time-0").evaluate(POINTS)}
    assert drawn["fp32"] == [[gpus, means[f"run-{gpus}"]] for gpus in (1, 2, 4)]
    # Weak scaling: with linear scaling a step takes the same time at every scale.
    assert [y for _, y in drawn["ideal"]] == pytest.approx([means["run-1"]] * 3)
    assert count_colours(frame.locator("#step-time-0")) > 10


@pytest.mark.usefixtures("half_year")
def test_the_tab_of_a_sweep_has_a_chart_for_each_model_with_the_published_step_times(page):
    address = f"?dag_id={SWEEP_DAG}&dag_run_id=week-{LAST}"
    frame = opened(page, f"/dags/{SWEEP_DAG}/runs/week-{LAST}/plugin/x{address}")
    chart = frame.get_by_role("img", name="Step time of llama3.1-25.04 · 8b ")
    drawn = {one["label"]: one for one in chart.evaluate(POINTS)}
    runs = [run for run in cells().values() if run.label.startswith("8b·fp8·")]
    published = {run.recipe.gpus: published_performance(run.recipe).step_time for run in runs}
    assert drawn["fp8, published"]["points"] == [[gpus, seconds] for gpus, seconds in published.items()]
    assert drawn["fp8, published"]["style"] == "triangle"
    assert [style == "crossRot" for style in drawn["fp8"]["style"]] == [
        f"8b·fp8·{gpus}" == BELOW for gpus in published
    ]
    low, high = chart.evaluate(
        "(canvas) => ['min', 'max'].map((end) => Chart.getChart(canvas).scales.y[end])"
    )
    assert 5 < low < high < 15, "it is fitted to the values: 9 and 12 s"
    assert any(column(frame, "minimum_detectable_change_percent"))
    marks = dict(zip(column(frame, "label"), column(frame, "against_publication"), strict=True))
    assert (marks[BELOW], marks[STEP]) == ("below", "passes")


def test_a_rejected_run_has_its_reason_and_the_lines_of_its_log_and_is_drawn_nowhere(
    page, store, make_result
):
    failed = Check(name="log_without_failure", passed=False, message="CUDA out of memory.")
    result = make_result("bad", verdict=Verdict(checks=(failed,)))
    log = result.log.model_copy(update={"excerpt": "before it\nCUDA out of memory"})
    stored.write(store, result.model_copy(update={"log": log}))
    frame = opened(page)
    expect(frame.locator("#summary")).to_have_text("1 run, 1 rejected")
    expect(frame.locator("td.note")).to_have_text("CUDA out of memory.")
    expect(frame.locator("#charts")).to_be_hidden()
    frame.locator("tr[data-job]").click()
    expect(frame.locator("#detail .verdict.rejected")).to_have_text("CUDA out of memory")
    expect(frame.locator("#detail .excerpt pre")).to_have_text("before it\nCUDA out of memory")
    expect(frame.locator("#detail .excerpt pre")).to_be_visible()


def test_hostile_values_are_shown_as_text(page, publish, make_result):
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
    frame.locator("#filter-cluster").select_option(HOSTILE)
    expect(frame.locator("tr[data-job]")).to_have_count(1)
    frame.locator("tbody .open").click()
    expect(frame.locator("#detail-title small")).to_have_text(HOSTILE)
    expect(frame.locator(".checks li")).to_contain_text(HOSTILE)
    expect(frame.locator("#detail pre").first).to_have_text(HOSTILE)
    assert [frame.locator(element).count() for element in ("img", "#listing script", "#detail script")] == [
        0
    ] * 3
    assert [place.title() for place in page.frames] == ["Airflow", "Step times"]


def test_the_record_is_shown_as_it_is_kept_and_without_secrets(page, publish, store, make_result):
    canary = "canary-91d0"
    plain = make_result("run")
    lost = plain.status.model_copy(update={"state": JobState.FAILED, "reason": "NODE_FAIL"})
    node = {"node": "n1", "faults": [], "matmul_tflops": 650.25}
    bad = {"node": "n2", "faults": ["it burns"], "matmul_tflops": None}
    checked = {"nodes": [node, bad], "all_reduce": {"bus_gb_per_s": 360.5}}
    started = {**(plain.log.started or {}), "launch": {"numa_bound_ranks": 2, "vboost": False}}
    log = plain.log.model_copy(update={"node_check": checked, "started": started})
    run = plain.run.model_copy(update={"environment": {"MY_TOKEN": canary, "NCCL_DEBUG": "INFO"}})
    provenance = plain.submitted.provenance.model_copy(update={"environment": {"MY_TOKEN": canary}})
    submitted = plain.submitted.model_copy(update={"run": run, "provenance": provenance})
    record = make_record(submitted, plain.status, log, (EarlierAttempt(job=plain.job, status=lost),))
    publish("run", run=run, record=record, script=f"export MY_TOKEN={canary}")
    frame = opened(page)
    frame.locator("tbody .open").click()
    kept = frame.locator("details", has_text="Record (JSON)").locator("pre")
    assert kept.text_content() == record == store.record("run")["content"]
    rates = "n1 650.3 TFLOPS, n2 it burns, all-reduce 360.5 GB/s"
    for fact in ("run failed (NODE_FAIL)", "MY_TOKEN=(not stored)", rates, "2 of 2"):
        expect(frame.locator("#detail section", has_text="What ran")).to_contain_text(fact)
    expect(frame.locator("#detail details .remark")).to_contain_text("never changed; sha256 ")
    assert canary not in (frame.locator("html").text_content() or "")
    with page.expect_download() as download:
        frame.get_by_role("link", name="Save as a file").click()
    assert download.value.suggested_filename == "run.json"
    saved = download.value.path().read_text()
    assert json.loads(saved)["record"] == record
    assert canary not in saved


def test_an_empty_store_says_what_to_do(page):
    frame = opened(page)
    expect(frame.locator("#message")).to_contain_text("steptime run llama3.1 --wait")
    expect(frame.locator("#csv")).to_be_hidden()


FAILED_RUN = "**/api/v2/dags/steptime_llama3.1-25.04/dagRuns/new"
FAILED_TASKS = f"{FAILED_RUN}/taskInstances?state=failed&order_by=end_date&limit=1"
FAILURE = f"{FAILED_RUN}/taskInstances/check_params/xcomEntries/failure?map_index=-1"


def answering(answer):
    """Return a handler that answers with this JSON, or with 404."""
    return lambda route: route.fulfill(status=404 if answer is None else 200, json=answer)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ({FAILED_RUN: {"state": "success"}, FAILED_TASKS: {"task_instances": []}}, "."),
        ({FAILED_TASKS: None}, "."),
        ({FAILURE: {"value": "no size 'x'."}}, ": check_params failed: no size 'x'."),
        ({FAILURE: None}, ": check_params failed: its log has the reason."),
    ],
)
def test_a_dag_run_that_ended_without_results_says_why(watched, answers, why):
    failed = {"task_instances": [{"task_id": "check_params", "map_index": -1}]}
    for address, answer in ({FAILED_RUN: {"state": "failed"}, FAILED_TASKS: failed} | answers).items():
        watched.page.route(address, answering(answer))
    frame = opened(watched.page, TAB)
    expect(frame.locator("#message")).to_have_text(f"Ended without results{why}")
    expect(frame.locator("#summary")).to_be_empty()
    watched.complaints.clear()  # Chromium logs the answer 404


def test_ten_thousand_runs_are_made_as_people_scroll(page, store, publish):
    from steptime.store import schema
    from steptime.store.database import write_transaction

    publish("run-0")
    (row,) = store.results()
    copies = [row | {"job_name": f"run-{n}", "submitted_at": 1.78e9 - n} for n in range(1, 10_050)]
    with write_transaction(store.url) as connection:
        connection.execute(schema.runs.insert(), [copy | {"content_sha256": ""} for copy in copies])
    frame = opened(page)
    expect(frame.locator("#summary")).to_have_text("10,050 runs; the newest 1,000 are shown")
    made = frame.locator("tbody tr[data-job]")
    assert made.count() < 1000
    before = made.count()
    frame.locator(".scroller").evaluate("(box) => { box.scrollTop = box.scrollHeight; }")
    expect(made).not_to_have_count(before)
    frame.locator("#search").fill("run-9876")
    expect(made).to_have_count(1)


ITS_DAG_RUN = "/api/v2/dags/steptime_llama3.1-25.04/dagRuns/manual__2026-11-21"
CLEARED = "**/api/v2/dags/steptime_llama3.1-25.04/clearTaskInstances"


def test_a_cell_runs_again_if_airflow_lets_the_user(watched, publish, make_result):
    mapped = {"task_id": "performance.wait", "map_index": 1}
    publish("mapped", provenance=make_result("x").submitted.provenance.model_copy(update=mapped))
    tasks = [
        {"task_id": f"{group}.{name}", "map_index": index, "state": "success"}
        for group in ("performance", "checkpoint.save")
        for index in (0, 1)
        for name in ("submit", "wait")
    ] + [{"task_id": "report", "map_index": -1, "state": "success"}]
    answers = iter(
        [
            (200, {"task_instances": tasks[:5], "total_entries": len(tasks)}),
            (200, {"task_instances": tasks[5:], "total_entries": len(tasks)}),
        ]
        * 3
    )
    asked = []

    def listed(route):
        status, content = next(answers)
        route.fulfill(status=status, json=content)

    def clear(route):
        asked.append(route.request.post_data_json)
        if len(asked) == 1:
            route.fulfill(status=403, json={"detail": "Forbidden"})
        else:
            route.fulfill(json={"task_instances": [], "total_entries": 0})

    watched.page.route(f"**{ITS_DAG_RUN}/taskInstances?**", listed)
    watched.page.route(CLEARED, clear)
    frame = opened(watched.page, f"{RUNS}&run=mapped")
    frame.get_by_role("button", name="Run this cell again …").click()
    frame.get_by_role("button", name="Run again", exact=True).click()
    expect(frame.locator(".again [role=alert]")).to_have_text("Forbidden")
    frame.get_by_role("button", name="Run again", exact=True).click()
    expect(frame.locator(".again [role=status]")).to_contain_text("It runs again: DAG run manual__2026-11-21")
    assert asked[1] == {
        "dag_run_id": "manual__2026-11-21",
        "task_ids": [["performance.submit", 1], ["performance.wait", 1], "report"],
        "dry_run": False,
        "only_failed": False,
        "reset_dag_runs": True,
    }
    tasks[3]["state"] = "running"
    watched.page.reload()
    frame.get_by_role("button", name="Run this cell again …").click()
    frame.get_by_role("button", name="Run again", exact=True).click()
    expect(frame.locator(".again [role=alert]")).to_contain_text("performance.wait is running: wait for its")
    assert len(asked) == 2
    watched.complaints.clear()  # Chromium logs the answer 403


def test_who_may_not_edit_a_dag_run_is_offered_no_new_run_of_a_cell(page, publish, auth_manager):
    publish("mapped")
    auth_manager.editable.clear()
    frame = opened(page, f"{RUNS}&run=mapped")
    expect(frame.locator("#detail-title")).to_contain_text("mapped")
    expect(frame.get_by_role("button", name="Run this cell again …")).to_be_hidden()
