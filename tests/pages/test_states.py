"""Every state of the pages and of the report: axe finds no violation, and nothing overflows.

One page goes through all states, once in each theme and at one of two widths.
"""

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import watched_page
from playwright.sync_api import expect
from sixty_cells import LAST, STEP, SWEEP_DAG, Made
from typer.testing import CliRunner

from steptime.cli import app

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

SLOWER, USUAL = (Made(STEP, week, number, 1, ()).job_name for week, number in ((LAST, 2), (LAST - 1, 0)))
OF_SWEEP = f"?dag_id={SWEEP_DAG}&dag_run_id=week-{LAST}"

STICKING_OUT = """() => {
    const scrolled = ".scroller, .scroll, pre", fixed = "select, input, option, svg, canvas, td.note";
    const name = (one) => `${one.tagName} ${one.id || one.className}: ${one.textContent.trim().slice(0, 60)}`;
    const wide = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility())
        .filter((one) => !one.matches(`${scrolled}, ${fixed}`) && !one.parentElement.closest(scrolled))
        .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline");
    const page = document.documentElement;
    return [...wide.map(name), ...(page.scrollWidth > innerWidth ? [`page: ${page.scrollWidth} px`] : [])];
}"""
"""Finds elements wider than their place, except boxes that scroll, and what is in them."""

BADLY_DRAWN = """() => Object.values(window.Chart?.instances ?? {}).flatMap((chart) => {
    const { left, right, top, bottom } = chart.chartArea, { id } = chart.canvas;
    const seen = chart.options.clip || 0;
    const whole = ({ x, y, options: { radius } }) =>
        Math.min(x - left, right - x, y - top, bottom - y) - radius >= -seen;
    const sets = chart.data.datasets.map((set, index) => [set, chart.getDatasetMeta(index).data]);
    const cut = sets.filter(([, points]) => points.some((one) => one.options.radius && !whole(one)));
    const steps = ({ type, ticks }) => type !== "linear" ? [] : ticks.slice(2).map((tick, index) =>
        (tick.value - ticks[index + 1].value) / (ticks[1].value - ticks[0].value));
    const uneven = Object.values(chart.scales).filter((scale) => scale.options.display)
        .filter((scale) => steps(scale).some((step) => Math.abs(step - 1) > 0.01));
    return [...cut.map(([{ label }]) => `${id}: points of ${label} are cut`),
        ...uneven.map(({ id: axis, ticks }) => `${id}: ${axis} has ${ticks.map(({ value }) => value)}`)];
})"""
"""Finds charts with points cut by their edges, or with uneven steps along an axis."""


def shown(page, address, drawn):
    """Show one view without Airflow around it."""
    page.goto(f"/steptime/{address}")
    expect(page.locator(drawn).first).to_be_visible()


def states(page, monkeypatch, report):
    """Bring the page into each state, and yield the state's name."""
    shown(page, "?view=week", "tr[data-cell]")
    yield "This week"
    shown(page, f"?view=runs&size=8b&gpus=32&run={SLOWER}&with={USUAL}", "#differences #overlay")
    for summary in page.locator("#detail-body details > summary").all():
        summary.click()
    page.locator("#detail").get_by_role("button", name="Accept this level").click()
    yield "a run beside another, with all that is folded, and the form to accept its level"
    shown(page, f"?view=runs&size=8b&gpus=32&run={SLOWER}&with=none", "#beside [role=alert]")
    yield "a run beside one that is not there"
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    yield "Runs"
    page.locator("#search").fill("none of them")
    expect(page.get_by_text("No run matches these filters.")).to_be_visible()
    yield "Runs, none of which matches"
    shown(page, f"?view=trend&series={SLOWER}", "#trend")
    yield "Trend"
    page.get_by_role("button", name="Accept this level").click()
    expect(page.get_by_label("Why")).to_be_focused()
    yield "Trend, to accept a level"
    shown(page, "?view=scaling", "#scaling-1")
    yield "Scaling"
    shown(page, OF_SWEEP, "#step-time-1")
    yield "the tab of a sweep"
    shown(page, f"?dag_id={SWEEP_DAG}&dag_run_id=none", "#message p")
    yield "the tab of a DAG run without results"
    with monkeypatch.context() as failing:
        failing.setenv("STEPTIME_STORE_URL", "mysql://nowhere")
        page.goto("/steptime/?view=week")
        expect(page.locator("#message .failure")).to_be_visible()
        yield "a store that fails"
    page.goto(report.as_uri())
    expect(page.locator("tr[data-cell]").first).to_be_visible()
    yield "the report"
    shown(page, "?view=node&cluster=east&node=e001", "#node-runs")
    yield "a node"
    shown(page, "?view=nodes", "#nodes tbody tr")
    yield "all nodes"
    shown(page, "?view=plan&workload=llama3.1&size=tiny&gpus=1,2&cluster=local", "#plan-runs")
    expect(page.locator("#plan-runs tbody tr")).to_have_count(2)
    yield "a plan"
    page.goto("/steptime/?view=plan")
    page.get_by_label("Workload").fill("llama3.1")
    page.get_by_role("button", name="Plan").click()
    expect(page.locator("#plan-runs")).to_be_visible()
    page.go_back()
    expect(page.locator("#plan-runs")).to_have_count(0)
    yield "no plan yet"
    page.get_by_label("Workload").fill("llama3.1")
    page.get_by_label("GPUs").fill("3")
    page.get_by_role("button", name="Plan").click()
    expect(page.locator("#message .failure")).to_contain_text("did you mean")
    yield "options without a plan"


@pytest.fixture
def report(half_year, tmp_path):
    """Return the report of the last week, a file."""
    path = tmp_path / "week.html"
    CliRunner().invoke(app, ["report", "-o", str(path)], catch_exceptions=False)
    return path


@pytest.mark.parametrize(
    ("scheme", "width", "height"),
    [pytest.param("light", 1366, 768, marks=pytest.mark.exhaustive), ("dark", 400, 800)],
)
def test_axe_finds_nothing_and_nothing_sticks_out(
    browser,
    site,
    report,
    monkeypatch,
    *,
    scheme,
    width,
    height,
):
    found = {}
    with watched_page(browser, site, color_scheme=scheme, timezone_id="UTC") as watched:
        watched.page.set_viewport_size({"width": width, "height": height})
        for state in states(watched.page, monkeypatch, report):
            by_axe = Axe().run(watched.page)
            rules = [f"{one['id']}: {one['nodes'][0]['html']}" for one in by_axe.response["violations"]]
            wrong = [*rules, *watched.page.evaluate(STICKING_OUT), *watched.page.evaluate(BADLY_DRAWN)]
            found |= {state: wrong} if wrong else {}
    assert not found
