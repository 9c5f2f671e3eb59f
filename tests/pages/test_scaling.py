"""Scaling on the page: efficiency over ranks of runs measured together, one chart for each model."""

import re

import pytest
from pages.framed import NAVIGATION, TAB, column, ending, opened
from playwright.sync_api import expect
from sixty_cells import BELOW, LAST, SCALED, cells

from steptime.recipes.published import published_performance

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

STYLES = """(canvas) => Chart.getChart(canvas).data.datasets.map(({label, data, pointStyle}) =>
    ({label, style: pointStyle, points: data.map(({x, y}) => [x, y])}))"""
LINES = """(canvas) => Chart.getChart(canvas).data.datasets.filter(({kind}) => !kind)
    .map(({data}) => data.map(({x, y}) => [x, y]))"""


@pytest.fixture
def scales(publish):
    """Publish two models in a newer DAG run, and one in an older one."""
    for size, slower in (("tiny", 1.25), ("small", 2.0)):
        for gpus in (1, 2):
            times = [slower if gpus == 2 else 1.0] * 20
            publish(f"{size}-{gpus}", size=size, gpus=gpus, step_times=times, dag_run_id="new")
    for gpus in (1, 4):
        publish(f"old-{gpus}", gpus=gpus, step_times=[1.0] * 20, dag_run_id="old", submitted_at=1.78e9)


@pytest.mark.usefixtures("scales")
def test_the_latest_dag_run_is_drawn_and_another_can_be_chosen(page):
    frame = opened(page, f"{NAVIGATION}?view=scaling")
    expect(frame.locator("#summary")).to_have_text(
        "2 models; lowest efficiency 50.0 % (small·fp32·2) in steptime_llama3.1-25.04/new."
    )
    drawn = [frame.locator(f"#scaling-{index}").evaluate(LINES) for index in range(2)]
    # Weak scaling: a step of two ranks that takes 1.25 as long has 80 % of the tokens per second and rank.
    # Behind those of the model that the older DAG run has, too, lie its own.
    assert sorted(drawn) == [[[[1, 100], [2, 50]]], [[[1, 100], [2, 80]], [[1, 100], [4, 100]]]]
    frame.locator("#together").select_option("steptime_llama3.1-25.04/old")
    expect(frame.locator("#summary")).to_have_text(
        "1 model; lowest efficiency 100.0 % (tiny·fp32·1) in steptime_llama3.1-25.04/old."
    )
    expect(page).to_have_url(ending("?view=scaling&together=steptime_llama3.1-25.04%2Fold"))
    assert frame.locator("#scaling-0").evaluate(LINES) == [[[1, 100], [4, 100]]]
    expect(frame.locator("canvas")).to_have_count(1)


@pytest.mark.usefixtures("half_year")
def test_the_run_of_a_month_before_lies_beside_it_on_the_same_axes(page):
    frame = opened(page, f"{NAVIGATION}?view=scaling")
    expect(frame.locator("#beside-scaling")).to_have_value(f"steptime_sweep_weekly/week-{LAST - 4}")
    ends = "(c) => { const {x, y} = Chart.getChart(c).scales; return [x.min, x.max, y.min, y.max]; }"
    drawn = [frame.locator(f"#scaling-{place}").evaluate(ends) for place in range(len(SCALED))]
    assert drawn == [drawn[0]] * len(SCALED)
    chart = frame.get_by_role("img", name="Efficiency of llama3.1-25.04 · 8b ")
    labels = chart.evaluate("(c) => Chart.getChart(c).legend.legendItems.map(({text}) => text)")
    assert labels == ["bf16", "fp8"]  # each stands for its earlier runs too
    frame.locator("#beside-scaling").select_option(f"steptime_sweep_weekly/week-{LAST - 1}")
    frame.locator("#together").select_option(f"steptime_sweep_weekly/week-{LAST - 1}")  # not with itself
    expect(frame.locator("#beside-scaling")).to_have_value(f"steptime_sweep_weekly/week-{LAST - 5}")
    frame.locator("#beside-scaling").select_option("")
    expect(page).to_have_url(re.compile("[?&]beside=none(&|$)"))
    expect(chart).not_to_have_attribute("aria-label", re.compile("· 20"))


@pytest.mark.usefixtures("scales")
def test_the_tab_of_a_dag_run_has_its_own(page):
    frame = opened(page, TAB)
    frame.get_by_role("link", name="Scaling").click()
    expect(frame.locator("#summary")).to_have_text(
        "2 models; lowest efficiency 50.0 % (small·fp32·2) in steptime_llama3.1-25.04/new."
    )
    expect(frame.locator("#together")).to_be_hidden()


@pytest.mark.usefixtures("scales")
def test_the_table_has_what_the_charts_have_and_leads_to_the_runs_by_keyboard(page):
    frame = opened(page, f"{NAVIGATION}?view=scaling")
    expect(frame.locator("tr[data-job]")).to_have_count(4)
    assert sorted(zip(column(frame, "gpus"), column(frame, "scaling_efficiency_percent"), strict=True)) == [
        *(("1", "100.0"), ("1", "100.0"), ("2", "50.0"), ("2", "80.0")),
    ]
    first, second = (frame.locator(".open").nth(place) for place in range(2))
    first.focus()
    page.keyboard.press("ArrowDown")
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(frame.locator("#detail")).to_be_visible()
    page.keyboard.press("Escape")
    expect(second).to_be_focused()


@pytest.mark.usefixtures("half_year")
def test_published_points_are_triangles_and_what_is_below_is_crossed(page):
    frame = opened(page, f"{NAVIGATION}?view=scaling")
    expect(frame.locator("#multiples canvas")).to_have_count(len(SCALED))
    chart = frame.get_by_role("img", name="Efficiency of llama3.1-25.04 · 8b ")
    sets = {one["label"]: one for one in chart.evaluate(STYLES)}
    assert sets["fp8, published"]["style"] == "triangle"
    rows = [run for run in cells().values() if run.label.startswith("8b·fp8·")]
    published = {
        run.recipe.gpus: published_performance(run.recipe).tokens_per_s / run.recipe.gpus for run in rows
    }
    assert sets["fp8, published"]["points"] == [
        [gpus, pytest.approx(100 * rate / published[8], abs=0.1)] for gpus, rate in published.items()
    ]
    assert dict(zip(published, sets["fp8"]["style"], strict=True)) == {
        gpus: "crossRot" if f"8b·fp8·{gpus}" == BELOW else "circle" for gpus in published
    }
    assert re.search(r"fp8 .* at 32, below the publication, ", chart.get_attribute("aria-label") or "")
    # A line has one legend entry, also for its published points.
    legend = "(canvas) => Chart.getChart(canvas).legend.legendItems.map(({text}) => text)"
    assert chart.evaluate(legend)[:2] == ["bf16", "fp8"]
    hidden = """(canvas) => {
        const chart = Chart.getChart(canvas);
        chart.legend.options.onClick.call(chart.legend, null, chart.legend.legendItems[0], chart.legend);
        return chart.data.datasets.filter((_, at) => !chart.isDatasetVisible(at)).map(({label}) => label);
    }"""
    gone = chart.evaluate(hidden)
    assert {"bf16", "bf16, published"} <= set(gone)
    assert not any(label.startswith("fp8") for label in gone)
    crossed = frame.locator("tr[data-job]").filter(has=page.get_by_role("button", name=BELOW, exact=True))
    expect(crossed).to_contain_text("below")


def test_repeats_have_an_interval(page, publish):
    for gpus in (1, 2):
        for number, slower in enumerate((1.0, 1.01, 1.02)):
            publish(f"{gpus}-{number}", gpus=gpus, step_times=[slower * (1.0 if gpus == 1 else 1.25)] * 20)
    frame = opened(page, f"{NAVIGATION}?view=scaling")
    chart = frame.get_by_role("img", name="Efficiency of")
    expect(chart).to_have_attribute(
        "aria-label", re.compile(r"100\.0 % at 1, 80\.0 % at 2, between 7\d\.\d % and 8\d\.\d %")
    )
    low, high = (column(frame, f"scaling_efficiency_{end}_percent") for end in ("low", "high"))
    assert [bool(one) for one in low] == [False] * 3 + [True] * 3
    assert float(low[-1]) < 80 < float(high[-1])
    page.goto(f"{NAVIGATION}?view=runs&run=2-2")
    fact = frame.locator(".facts div").filter(has_text="Mean efficiency of its scale's jobs")
    expect(fact).to_contain_text(f"{float(low[-1]):.3g} to {float(high[-1]):.3g} %, 95 % interval")
    expect(frame.locator(".facts").first).not_to_contain_text("Scale mean")
