"""The pictures of the half year in docs/images: `make screenshots` keeps what is drawn here."""

import os
from pathlib import Path

import pytest
from browser import watched_page
from playwright.sync_api import Browser, expect

from steptime.results.store import Store

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

PAGES = {
    "week": ("?view=week", 640, "#summary strong"),
    "runs": ("?view=runs&size=small", 640, "tr[data-job]"),
    "trend": ("?view=trend&series=small-4-27", 760, "canvas#trend"),
    "scaling": ("?view=scaling", 480, "#scaling-1"),
    "run": ("?view=runs&run=small-4-27&with=small-4-20", 900, "#differences #overlay"),
}
"""Addresses, how high each is drawn, and what is there once it is."""


@pytest.fixture
def half_a_year(half_years: tuple[str, str], store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", half_years[1])


@pytest.mark.usefixtures("half_a_year")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_the_pages_of_half_a_year_can_be_kept(
    browser: Browser, site: str, tmp_path: Path, name: str, scheme: str
) -> None:
    address, height, drawn = PAGES[name]
    with watched_page(browser, site, color_scheme=scheme, timezone_id="UTC") as watched:
        watched.page.set_viewport_size({"width": 1366, "height": height})
        watched.page.goto(f"/steptime/{address}")
        expect(watched.page.locator(drawn).first).to_be_visible()
        picture = Path(os.environ.get("STEPTIME_PICTURES", tmp_path)) / f"{name}-{scheme}.png"
        watched.page.screenshot(path=picture, animations="disabled")
    assert 20_000 < picture.stat().st_size < 200_000
