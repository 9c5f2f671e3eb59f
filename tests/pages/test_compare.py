"""Compare in a browser: two sets of runs over all cells, by mouse and keyboard, on any screen."""

import itertools
import json
import random
from collections.abc import Callable

import pytest
from pages.framed import NAVIGATION, ending, opened
from playwright.sync_api import expect

from steptime.measure.record import format_record
from steptime.store.run_models import Result

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

COMPARE = f"{NAVIGATION}?view=compare"
Publish = Callable[..., Result]


@pytest.fixture
def releases(publish, make_result):
    """Publish runs of seven cells with two images, the newer 5 % slower, and a cell of each image alone."""
    rng = random.Random(2)  # noqa: S311 - step times, not secrets
    for image, level, scales in (("nemo:25.11.01", 1.0, range(8)), ("nemo:26.02.01", 1.05, range(1, 9))):
        for scale in scales:
            for number in range(3):
                name = f"{image[5:]}-{scale}-{number}"
                times = [2**scale * level * rng.gauss(1, 0.003)] * 20
                record = json.loads(make_result(name, gpus=2**scale).record)
                record["provenance"]["staged"]["image"] = image
                publish(name, gpus=2**scale, step_times=times, record=format_record(record))


def column(frame, number):
    return frame.locator(f"#listing tbody tr > :nth-child({number})").all_inner_texts()


@pytest.mark.usefixtures("releases")
def test_two_releases_are_compared_by_a_link_and_by_typing(watched):
    page = watched.page
    frame = opened(page, COMPARE)
    summary = frame.locator("#summary")
    expect(summary).to_have_text("Two sets of runs, over all cells that both have.")
    frame.get_by_role("link", name="image", exact=True).click()
    expect(summary).to_contain_text("B is slower than A: median of 7 cells in both sets +")
    expect(page).to_have_url(ending("?view=compare&a=image%3Dnemo%3A25.11.01&b=image%3Dnemo%3A26.02.01"))
    expect(frame.get_by_label("Set A, to which differences are relative")).to_have_value(
        "image=nemo:25.11.01"
    )
    expect(frame.locator("tr[data-cell]")).to_have_count(7)
    differences = [float(text) for text in column(frame, 2)]
    assert all(4 < difference < 6 for difference in differences)
    assert [*map(int, column(frame, 7))] == [3] * 7
    expect(frame.locator("#rest")).to_contain_text("Only in A: tiny·fp32·1.")
    expect(frame.locator("#rest")).to_contain_text("Only in B: tiny·fp32·256.")
    expect(frame.locator("#rest tbody tr")).to_have_text(["imagenemo:25.11.01nemo:26.02.017 of 7"])
    page.reload()
    expect(summary).to_contain_text("B is slower than A")

    frame.get_by_label("Set B").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("image=nemo:25.*; gpus=4")
    page.keyboard.press("Enter")
    expect(summary).to_have_text("Median of 1 cell in both sets +0.0 %; an interval needs 6 cells.")
    expect(frame.locator(".remarks")).to_contain_text("3 runs are in both sets")
    frame.get_by_label("Set B").fill("image=nemo:27")
    page.keyboard.press("Enter")
    failure = frame.get_by_role("alert")
    expect(failure).to_contain_text("unknown image 'nemo:27' of the stored results")
    expect(frame.locator("#listing")).to_be_hidden()
    expect(frame.get_by_label("Set B")).to_have_value("image=nemo:27")
    watched.complaints.clear()  # Chromium logs the answer 422
    page.go_back()
    page.go_back()
    expect(summary).to_contain_text("B is slower than A")
    expect(failure).to_be_hidden()
    frame.locator("tr[data-cell='tiny·fp32·4'] a").click()
    expect(frame.locator("#views [aria-current]")).to_have_text("Trend")


@pytest.mark.usefixtures("releases")
def test_no_screen_is_too_narrow(page):
    inside = "(all) => all.every((one) => one.getBoundingClientRect().right <= innerWidth)"
    wrong = []
    for width, scheme in itertools.product((400, 1366), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        frame = opened(page, f"{COMPARE}&a=image%3Dnemo%3A25.11.01&b=image%3Dnemo%3A26.02.01")
        expect(frame.locator("tr[data-cell]")).to_have_count(7)
        if not frame.locator("html").evaluate("(html) => html.scrollWidth <= html.clientWidth"):
            wrong.append((width, scheme, "the page scrolls"))
        if not frame.locator("#sets input, #sets select, #sets button, #summary").evaluate_all(inside):
            wrong.append((width, scheme, "a part sticks out"))
    assert not wrong


def test_an_empty_store_offers_only_the_months(watched):
    frame = opened(watched.page, COMPARE)
    expect(frame.locator(".ideas a")).to_have_text(["Last 30 days, and the 30 before"])
    frame.locator(".ideas a").click()
    expect(frame.get_by_role("alert")).to_contain_text("set A (since=60d; until=30d) has no valid run")
    watched.complaints.clear()  # Chromium logs the answer 422
