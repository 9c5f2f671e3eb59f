"""*This week*: half a year of 60 cells with planted changes, summed up in one sentence."""

import re
import time

import pytest
from pages.framed import NAVIGATION, column, ending, opened
from playwright.sync_api import expect
from sixty_cells import ACCEPTED, BELOW, DRIFT, STEP, WEST_CHANGE, named, planted

from steptime.store.run_models import Check, Verdict

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600), pytest.mark.usefixtures("half_year")]


def rows(frame):
    """Return the cells of the table as displayed, with empty texts for missing columns."""
    heads = frame.locator("thead th").evaluate_all("(heads) => heads.map((head) => head.dataset.key)")
    columns = [column(frame, head) for head in heads]
    written = [dict(zip(heads, values, strict=True)) for values in zip(*columns, strict=True)]
    return [
        {"cause": "", "drift_percent": ""} | row | {"verdict": row["verdict"].partition(",")[0]}
        for row in written
    ]


def test_exactly_what_is_planted_is_named(page, half_year):
    frame = opened(page, NAVIGATION)
    expect(frame.locator("tr[data-cell]")).to_have_count(60)
    assert named(rows(frame)) == planted(half_year)
    expect(frame.locator("#summary")).to_contain_text("60 cells: ")
    expect(frame.locator("#summary")).to_have_text(
        re.compile(
            r"^60 cells: \d+ slower, .*; worst .*; 1 drifts slowly(; \d+ waits? for confirmation runs)?\.$"
        )
    )
    incidents = frame.locator("[data-incident]")
    expect(incidents.filter(has_text=f"node {half_year.bad_node}")).to_have_count(1)
    expect(incidents.filter(has_text=WEST_CHANGE)).to_have_count(1)
    frame.locator(".remarks summary").click()
    remarks = frame.locator(".remarks li")
    expect(remarks.first).to_have_text(re.compile(rf"^node {half_year.bad_node}: \d+\.\d % slower \("))
    expect(remarks.filter(has_text=f"{DRIFT}: drifts slowly")).to_have_count(1)
    expect(frame.locator(".totals")).to_contain_text("60 cells · ")


def test_the_list_of_nodes_begins_with_the_slow_one(page, half_year):
    frame = opened(page, NAVIGATION)
    frame.get_by_role("link", name="Nodes", exact=True).click()
    first = frame.locator("#nodes tbody tr").first
    expect(first).to_contain_text(re.compile(rf"^{half_year.bad_node}east\+\d"))
    first.get_by_role("link").click()
    expect(frame.locator("#summary")).to_contain_text(f"Node {half_year.bad_node} of east: ")


WIDE_FONT = "* { letter-spacing: 0.06em; word-spacing: 0.1em; font-family: monospace; }"
"""A font that takes a quarter more room than that of the machine that made the page."""


@pytest.mark.parametrize("style", ["", WIDE_FONT])
def test_a_small_screen_has_the_whole_table_and_a_telephone_the_verdicts(page, style):
    page.set_viewport_size({"width": 1366, "height": 768})
    frame = opened(page, NAVIGATION)
    add_style(frame, style)
    scroller = frame.locator("#listing .scroller")
    fits = "(box) => box.scrollWidth <= box.clientWidth"
    assert scroller.evaluate(fits)
    expect(frame.locator("th[data-key=queue_wait_s]")).to_have_count(0)
    frame.get_by_role("button", name="All columns").click()
    expect(frame.locator("th[data-key=queue_wait_s]")).to_have_count(1)
    expect(page).to_have_url(ending("columns=all"))
    page.reload()
    frame.get_by_role("button", name="Fewer columns").click()
    expect(frame.locator("th[data-key=queue_wait_s]")).to_have_count(0)
    page.set_viewport_size({"width": 400, "height": 768})
    box = frame.locator("th[data-key=change_percent]").bounding_box()
    assert box
    assert box["x"] + box["width"] <= 380


def add_style(frame, style):
    """Add rules to a page whose policy forbids style elements."""
    frame.locator("html").evaluate(
        "(_, style) => { const sheet = new CSSStyleSheet(); sheet.replaceSync(style);"
        " document.adoptedStyleSheets = [sheet]; }",
        style,
    )


def test_a_keyboard_reaches_the_first_cell_by_three_keys(page):
    frame = opened(page, NAVIGATION)
    expect(frame.locator("tr[data-cell]")).to_have_count(60)
    page.keyboard.press("Tab")
    expect(frame.get_by_role("link", name="Skip to the results")).to_be_focused()
    page.keyboard.press("Enter")
    links = frame.locator("tr[data-cell] a.open")
    expect(links.first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(links.nth(1)).to_be_focused()
    assert page.url.endswith(NAVIGATION)


def test_a_screen_reader_is_told_the_row_and_its_recent_runs(page):
    frame = opened(page, NAVIGATION)
    rows = frame.locator("tr[data-cell]")
    expect(rows.get_by_role("rowheader")).to_have_count(60)
    said = re.compile(r"^\d+ runs from [\d.]+ to [\d.]+ s, the newest [\d.]+ s; usual [\d.]+ s$")
    charts = rows.get_by_role("img", name=said)
    expect(charts).to_have_count(60)
    expect(frame.locator("[data-incident]").first.get_by_role("img", name=said)).to_have_count(1)


def test_a_click_beside_a_cell_opens_its_trend_and_rows_that_open_nothing_do_not_look_so(page, half_year):
    frame = opened(page, NAVIGATION)
    row = frame.locator(f"tr[data-cell='{STEP}']")
    assert row.evaluate("(row) => getComputedStyle(row).cursor") == "pointer"
    row.locator("[class~=main]").click()
    expect(frame.locator("#views [aria-current]")).to_have_text("Trend")
    frame = opened(page, f"{NAVIGATION}?view=node&cluster=east&node={half_year.bad_node}")
    row = frame.locator("#node-runs tbody tr").first
    assert row.evaluate("(row) => getComputedStyle(row).cursor") != "pointer"


def test_a_store_that_fails_shows_no_empty_table(watched, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", "mysql://nowhere")
    frame = opened(watched.page, NAVIGATION)
    expect(frame.locator("#message .failure")).to_be_visible()
    expect(frame.locator("table")).to_be_hidden()
    expect(frame.locator("#period")).to_have_value("7")
    watched.complaints.clear()  # Chromium logs the answer 503


def test_what_changed_and_whether_the_publication_is_passed_stand_beside_the_cell(page):
    frame = opened(page, NAVIGATION)
    found = {row["cell"]: row for row in rows(frame)}
    assert found[STEP]["changes"].startswith("NVTE_FUSED_ATTN 1 → 0; nodes: ")
    assert {cell: found[cell]["against_publication"] for cell in (STEP, BELOW, ACCEPTED)} == {
        STEP: "passes",
        BELOW: "below",
        ACCEPTED: "below",
    }
    assert found["70b·bf16·2048·checkpoint save"]["against_publication"] == ""
    assert frame.locator("tbody td[title]:not([title=''])").count() == 0, "a title needs a mouse"


def test_cells_are_searched_and_filtered_and_the_address_keeps_both(page):
    frame = opened(page, NAVIGATION)
    frame.locator("#only-dtype").select_option("fp8")
    frame.locator("#find").fill("70b")
    expect(frame.locator("tr[data-cell]").first).to_be_visible()
    cells = frame.locator("tr[data-cell]").evaluate_all("(rows) => rows.map((row) => row.dataset.cell)")
    assert cells
    assert all(cell.startswith("70b·fp8·") for cell in cells), cells
    expect(page).to_have_url(ending("dtype=fp8&find=70b"))
    page.reload()
    expect(frame.locator("tr[data-cell]")).to_have_count(len(cells))
    frame.locator("#only-against_publication").select_option("below")
    expect(frame.locator("#message")).to_contain_text("No cell fits the search and the filters.")
    frame.locator("#only-dtype").select_option("")
    frame.locator("#find").fill("")
    expect(frame.get_by_role("link", name=BELOW, exact=True)).to_be_visible()
    badges = set(column(frame, "against_publication"))
    assert badges == {"below"}, badges
    frame.locator("#find").fill("no such cell")
    expect(frame.locator("#message")).to_contain_text("No cell fits the search and the filters.")


def test_a_bad_node_has_a_page_with_its_runs_and_how_to_exclude_it(page, half_year):
    frame = opened(page, NAVIGATION)
    frame.locator("[data-incident]").get_by_role("link", name=half_year.bad_node, exact=True).click()
    said = (
        rf"Node {half_year.bad_node} of east: [3-7]\.\d % slower than on other nodes "
        r"\(95 % interval \+[2-6]\.\d to \+[4-8]\.\d %, \d+ cells\)\. Incident: "
    )
    expect(frame.locator("#summary")).to_have_text(re.compile(said))
    expect(frame.locator("#node-runs tbody tr").first).to_contain_text("slower")
    expect(frame.locator("#view")).to_contain_text(f"--exclude {half_year.bad_node}")
    expect(frame.locator("#view")).to_contain_text("does not exclude it")
    expect(page).to_have_url(ending(f"?view=node&cluster=east&node={half_year.bad_node}"))


def test_a_note_is_written_on_an_incident(page):
    frame = opened(page, NAVIGATION)
    card = frame.locator("[data-incident]").first
    card.get_by_role("button", name="Write a note").click()
    card.get_by_label("Note").fill("ticket 4711")
    card.get_by_role("button", name="Write a note", exact=True).click()
    expect(card.locator(".note")).to_contain_text("ticket 4711 (")


def test_a_known_incident_is_silenced_until_a_day_and_counts_apart(page):
    frame = opened(page, NAVIGATION)
    cards = frame.locator("[data-incident]:visible")
    title = cards.first.get_by_role("heading").text_content()
    assert title
    card = frame.locator("[data-incident]").filter(has_text=title)
    day = time.strftime("%Y-%m-%d", time.localtime(time.time() + 10 * 86_400))
    card.get_by_role("button", name="Silence").click()
    card.get_by_label("Until").fill(day)
    card.get_by_label("Note").fill("ticket 4711")
    card.get_by_role("button", name="Silence", exact=True).click()
    expect(frame.locator("#summary")).to_contain_text(f" silenced until {day}")
    expect(card).not_to_be_visible()
    frame.get_by_text("1 silenced incident").click()
    expect(card.locator(".badge")).to_contain_text(f", silenced until {day} by ")
    expect(card.locator(".note")).to_contain_text("ticket 4711 (")
    expect(frame.locator("tr[data-cell] .judged").filter(has_text="silenced")).not_to_have_count(0)

    card.get_by_role("button", name="End the silence").click()
    card.get_by_label("Note").fill("it is replaced")
    card.get_by_role("button", name="End the silence", exact=True).click()
    expect(frame.locator("#summary")).not_to_contain_text("silenced")
    expect(card).to_be_visible()


def test_incidents_that_have_no_room_are_behind_a_line_as_cards(page):
    def answer(route):
        found = route.fetch().json()
        route.fulfill(json={"incidents": (3 * found["incidents"])[:7]})

    page.route("**/api/incidents*", answer)
    frame = opened(page, NAVIGATION)
    expect(frame.locator("[data-incident]:visible")).to_have_count(5)
    frame.get_by_text("2 more incidents").click()
    expect(frame.locator("[data-incident]:visible")).to_have_count(7)


def test_a_page_without_airflow_around_it_goes_back_by_one_press(page):
    page.goto("/steptime/?view=week")
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.locator("tr[data-job]").first).to_be_visible()
    page.go_back()
    expect(page.locator("tr[data-cell]")).to_have_count(60)
    written = page.evaluate("import('/steptime/static/format.js').then(({duration}) => duration(7199))")
    assert written == "2 h 0 min"


def test_the_views_are_reached_by_keyboard_and_left_by_the_browsers_button(page):
    frame = opened(page, NAVIGATION)
    runs = frame.get_by_role("link", name="Runs", exact=True)
    runs.focus()
    page.keyboard.press("Enter")
    expect(frame.locator("tr[data-job]").first).to_be_visible()
    expect(runs).to_have_attribute("aria-current", "page")
    expect(page).to_have_url(ending("?view=runs"))
    page.go_back()
    expect(frame.locator("tr[data-cell]")).to_have_count(60)


def test_a_cell_that_failed_leads_to_its_run_and_its_trend_says_so(page, store, publish, monkeypatch):
    monkeypatch.setenv("STEPTIME_STORE_URL", store.url)
    now = time.time()
    for day in range(20, 13, -1):
        publish(f"usual-{day}", submitted_at=now - 86_400 * day)
    check = Check(name="job_succeeded", passed=False, message="Expected the job to succeed, but it failed.")
    publish("failed", submitted_at=now - 60, verdict=Verdict(checks=(check,)))
    cause = "Expected the job to succeed, but it failed"

    frame = opened(page, NAVIGATION)
    expect(frame.locator(".completeness p")).to_have_text("1 cell planned: 0 judged, 1 failed, 0 not run.")
    expect(frame.locator(".completeness li")).to_have_text(f"tiny·fp32·2 failed: {cause}")
    frame.locator(".completeness").get_by_role("link", name="tiny·fp32·2").click()
    expect(frame.locator("#detail-title")).to_contain_text("failed")
    frame = opened(page, f"{NAVIGATION}?view=trend&series=failed")
    expect(frame.locator("#summary")).to_contain_text(f"; since then it failed: {cause}.")
    expect(frame.locator("#summary")).to_contain_text(", unchanged until ")
