"""The pictures of the half year in docs/images: `make screenshots` keeps those that are taken here."""

import os
from pathlib import Path

import pytest
from browser import watched_page
from playwright.sync_api import expect
from sixty_cells import LAST, STEP, SWEEP_DAG, Made

pytestmark = [pytest.mark.browser, pytest.mark.exhaustive, pytest.mark.timeout(600)]

SLOWER, USUAL = (Made(STEP, week, number, 1, ()).job_name for week, number in ((LAST, 2), (LAST - 1, 0)))
PAGES = {
    "week": ("?view=week", 640, "#summary strong"),
    "runs": ("?view=runs&size=70b&dtype=fp8&period=30", 640, "tr[data-job]"),
    "trend": (f"?view=trend&series={SLOWER}", 700, "canvas#trend"),
    "scaling": ("?view=scaling", 1180, "#scaling-1"),
    "run": (f"?view=runs&run={SLOWER}&with={USUAL}", 900, "#differences #overlay"),
    "sweep": (f"?dag_id={SWEEP_DAG}&dag_run_id=week-{LAST}", 900, "#step-time-1"),
}
"""By picture: the address, the height, and what is visible once the page is drawn."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_half_a_year_can_be_kept(browser, site, half_year, tmp_path, scheme):
    pages = {name: (f"{site}/steptime/{address}", *drawn) for name, (address, *drawn) in PAGES.items()}
    sizes = {}
    with watched_page(browser, site, color_scheme=scheme, timezone_id="UTC") as watched:
        for name, (address, height, drawn) in pages.items():
            watched.page.set_viewport_size({"width": 1366, "height": height})
            watched.page.goto(address)
            expect(watched.page.locator(drawn).first).to_be_visible()
            picture = Path(os.environ.get("STEPTIME_PICTURES", tmp_path)) / f"{name}-{scheme}.png"
            watched.page.screenshot(path=picture, animations="disabled")
            sizes[name] = picture.stat().st_size
    assert min(sizes.values()) > 20_000, sizes
    assert max(sizes.values()) < 400_000, sizes
