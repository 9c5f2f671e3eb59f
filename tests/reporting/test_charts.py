"""Where a chart has what: places are worked out by hand, in a picture of 620 times 230 pixels."""

import time
from typing import Any

from steptime.reporting.page import Line, scaling_chart, trend_chart
from steptime.results.columns import of_series

DAY_S = 86_400.0
FIRST = 1.79e9


def points(*seconds: float, **columns: Any) -> list[dict[str, Any]]:
    """Rows of a trend, a run every hundred days; between 0.5 and 2 seconds are usual."""
    row = {"low_s": 0.5, "high_s": 2.0, "baseline_s": 1.0, "level_s": None, "change_percent": None}
    row |= {"verdict": "unchanged", "suspicion": "", "changes": "", "accepted": ""}
    return [
        row
        | {"published_step_time_s": None, "job_name": f"run-{number}", "judged_s": one}
        | {"submitted_at": FIRST + 100 * DAY_S * number}
        | columns
        for number, one in enumerate(seconds)
    ]


def day(number: int) -> str:
    return time.strftime("%d %b %Y", time.localtime(FIRST + number * DAY_S))


def test_a_trend_is_drawn_over_its_dates() -> None:
    rows = points(1.0, 1.25, 1.5)
    rows[1] |= {"verdict": "slower", "suspicion": "suspected", "change_percent": 25.0, "changes": "NeMo 2.8"}
    rows[2] |= {"verdict": "slower", "suspicion": "confirmed", "change_percent": 50.04}

    chart = trend_chart("8b", rows)

    assert (chart.title, chart.remark) == ("8b", "")
    assert chart.described == "Seconds of the runs, oldest first: 1, 1.25, 1.5"
    assert chart.x_ticks == [
        (x, day(number)[:-5])
        for x, number in ((72.9, 0), (203.4, 50), (334.0, 100), (464.6, 150), (595.1, 200))
    ]
    assert chart.y_ticks == [(193.8, "0.5"), (137.3, "1"), (80.7, "1.5"), (24.2, "2")]
    assert chart.lines == [
        Line("band", "M72.9,24.2L334.0,24.2L595.1,24.2L595.1,193.8L334.0,193.8L72.9,193.8Z"),
        Line("runs", "M72.9,137.3L334.0,109.0L595.1,80.7"),
        Line("baseline", "M72.9,137.3L334.0,137.3L595.1,137.3"),
    ]
    assert chart.legend == [("baseline", "baseline")]
    assert [(mark.kind, mark.x, mark.y, mark.shape) for mark in chart.marks] == [
        ("unchanged", 72.9, 137.3, "dot"),
        ("slower", 334.0, 109.0, "dot"),
        ("slower", 595.1, 80.7, "diamond"),
    ]
    assert [mark.text for mark in chart.marks] == [
        f"{day(0)}: 1 s: unchanged (run-0)",
        f"{day(100)}: 1.25 s, +25.0 %: slower, suspected (run-1)",
        f"{day(200)}: 1.5 s, +50.0 %: slower, confirmed (run-2)",
    ]
    (upright,) = chart.uprights
    assert (upright.kind, upright.x, upright.top, upright.bottom) == ("changes", 334.0, 14, 204)
    assert upright.text == f"{day(100)}, changed: NeMo 2.8"


def test_a_single_run_is_in_the_middle() -> None:
    chart = trend_chart("8b", points(1.0, low_s=None, high_s=None, baseline_s=None))

    assert [(mark.x, mark.y) for mark in chart.marks] == [(334.0, 109.0)]
    assert chart.x_ticks == [(334.0, day(0)[:-5])]
    assert [line.kind for line in chart.lines] == ["runs"], "without a history nothing is usual"


def test_an_axis_is_divided_by_round_numbers() -> None:
    for highest, divided in ((1.4, "1 1.1 1.2 1.3 1.4"), (1.8, "1 1.2 1.4 1.6 1.8"), (3.0, "1 1.5 2 2.5 3")):
        rows = points(1.0, highest, low_s=None, high_s=None)
        assert " ".join(text for _, text in trend_chart("8b", rows).y_ticks) == divided


def test_what_is_published_is_a_line_over_all_dates() -> None:
    rows = points(1.0, 1.25, 1.5)
    rows[-1]["published_step_time_s"] = 1.5

    chart = trend_chart("8b", rows)

    assert chart.lines[-2:] == [
        Line("published", "M72.9,80.7L595.1,80.7"),
        Line("passes-until", "M72.9,71.8L595.1,71.8"),
    ]
    assert chart.legend[-1] == ("passes-until", "passes until")


def scales(*percent: float, **columns: Any) -> list[dict[str, Any]]:
    """Rows of one model at 1,024, 2,048, … GPUs."""
    row = dict.fromkeys(of_series("variant"), "same") | {"dtype": "bf16", "gpu_type": "h100", "proxy": False}
    row |= {"against_publication": None, "step_time_over_published": None, "tokens_per_s_per_gpu": 10.0}
    row |= {"scaling_efficiency_low_percent": None, "scaling_efficiency_high_percent": None}
    return [
        row
        | {"gpus": 1024 * 2**number, "scaling_efficiency_percent": one, "job_name": f"run-{number}"}
        | columns
        for number, one in enumerate(percent)
    ]


def test_efficiency_is_drawn_over_doublings() -> None:
    rows = scales(100.0, 96.0, 91.0)
    rows[1] |= {"scaling_efficiency_low_percent": 84.0, "scaling_efficiency_high_percent": 98.0}

    chart = scaling_chart("llama · 8b", rows[::-1])

    assert (chart.title, chart.remark) == ("llama · 8b", "over GPUs")
    assert chart.described == "bf16: 100.0 % at 1024 GPUs, 96.0 % at 2048 GPUs, 91.0 % at 4096 GPUs"
    assert chart.x_ticks == [(83.8, "1,024"), (334.0, "2,048"), (584.2, "4,096")]
    assert chart.y_ticks == [
        *((204.0, "80"), (166.0, "85"), (128.0, "90"), (90.0, "95"), (52.0, "100"), (14.0, "105")),
    ]
    assert chart.lines == [
        Line("ideal", "M83.8,52.0L584.2,52.0"),
        Line("series-1 thick", "M83.8,52.0L334.0,82.4L584.2,120.4"),
    ]
    assert chart.legend == [("series-1", "bf16")]
    places = [(83.8, 52.0), (334.0, 82.4), (584.2, 120.4)]
    assert [(mark.x, mark.y, mark.shape) for mark in chart.marks] == [
        *((x, y, "repeat") for x, y in places),
        *((x, y, "dot") for x, y in places),
    ]
    assert [chart.marks[1].text, chart.marks[4].text] == [
        "bf16: 96.0 % at 2048 (run-1)",
        "bf16: 96.0 % at 2048",
    ]
    (interval,) = chart.uprights
    assert (interval.kind, interval.x, interval.top, interval.bottom) == (
        *("interval series-1", 334.0, 67.2, 173.6),
    )
    assert interval.text == "between 84.0 and 98.0 %"


def test_a_scale_that_ran_again_is_drawn_by_its_mean() -> None:
    chart = scaling_chart("llama", [*scales(100.0, 96.0), *scales(98.0)])

    assert [line.path for line in chart.lines] == ["M83.8,77.3L584.2,77.3", "M83.8,90.0L584.2,128.0"]
    assert [mark.shape for mark in chart.marks] == [*["repeat"] * 3, *["dot"] * 2]


def test_axes_of_efficiency_go_from_90_to_105_percent_or_as_far_as_needed() -> None:
    ends = {
        percent: [text for _, text in scaling_chart("llama", scales(100.0, percent)).y_ticks]
        for percent in (99.0, 71.0, 112.0)
    }
    assert [(one[0], one[-1]) for one in ends.values()] == [("90", "105"), ("70", "100"), ("90", "115")]
    (only,) = scaling_chart("llama", scales(100.0)).x_ticks
    assert only == (83.8, "1,024")


def test_what_is_published_is_relative_to_its_own_smallest_scale() -> None:
    rows = scales(100.0, 96.0)
    rows[0] |= {"step_time_over_published": 1.0}
    rows[1] |= {"step_time_over_published": 1.2, "tokens_per_s_per_gpu": 8.0, "against_publication": "below"}

    marks = scaling_chart("llama", rows).marks

    assert [(mark.shape, mark.text) for mark in marks[2:]] == [
        ("dot", "bf16: 100.0 % at 1024"),
        ("cross", "bf16: 96.0 % at 2048, below the publication"),
        ("triangle", "bf16, published: 100.0 % at 1024"),
        ("triangle", "bf16, published: 96.0 % at 2048"),
    ]
    assert marks[-1].y == marks[3].y
    for published, on_the_axis in ((0.899, False), (0.9, True), (1.05, True), (1.051, False)):
        rows[1] |= {"step_time_over_published": published, "tokens_per_s_per_gpu": 10.0}
        shapes = [mark.shape for mark in scaling_chart("llama", rows).marks]
        assert shapes.count("triangle") == 1 + on_the_axis, published
    rows[0] |= {"step_time_over_published": None}
    assert "triangle" not in {mark.shape for mark in scaling_chart("llama", rows).marks}, "relative to what?"


def test_lines_have_the_names_of_what_they_differ_in() -> None:
    two = [*scales(100.0, 96.0), *scales(100.0, 95.0, proxy=True, cluster="east")]
    assert scaling_chart("llama", two).legend == [("series-1", "same"), ("series-2", "proxy · east")]
    nine = [row for number in range(9) for row in scales(100.0, 96.0, dtype=f"fp{number}")]
    assert scaling_chart("llama", nine).legend[-1] == ("series-1", "fp8"), "there are eight colours"
    assert scaling_chart("llama", scales(100.0, 96.0, gpu_type="cpu")).remark == "over ranks"
