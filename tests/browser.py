"""Headless Chromium, and a watch for what a page must not do: log errors, or ask other hosts."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from steptime.errors import SystemFailure

_NO_SANDBOX_NO_NETWORK = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
_PATIENCE_MS = 60_000  # a busy machine may take many seconds to draw
# Chromium warns with these words of any iframe with the sandbox that Airflow gives to pages of plugins.
_OF_AIRFLOW = "allow-scripts and allow-same-origin"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield the system's Chromium without a window, if possible its headless build, which needs less CPU.

    Without one it is the one that Playwright has fetched. Raises SystemFailure if there is neither.
    """
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with sync_playwright() as playwright:
        if program is None and not Path(playwright.chromium.executable_path).exists():
            raise SystemFailure(
                "Chromium is missing: install Debian's package chromium-headless-shell, or call 'playwright "
                "install --with-deps --only-shell chromium'."
            )
        expect.set_options(timeout=_PATIENCE_MS)
        browser = playwright.chromium.launch(
            executable_path=program, args=_NO_SANDBOX_NO_NETWORK, timeout=2 * _PATIENCE_MS
        )
        yield browser
        browser.close()


@dataclass
class Watched:
    """A page whose errors, warnings and requests to other hosts are noted."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


@contextmanager
def watched_page(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """Yield a page in a browser context of its own for the site at `url`; `options` are Playwright's."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=url, **options)
    page = context.new_page()
    page.set_default_timeout(_PATIENCE_MS)
    watched = Watched(page)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            watched.complaints.append(f"{message.text} ({message.location['url']})")
            if message.type in ("error", "warning") and _OF_AIRFLOW not in message.text
            else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((url, "data:", "blob:")) else watched.foreign.append(request.url)
        ),
    )
    yield watched
    context.close()


@contextmanager
def logged_in(url: str, user: str, password: str) -> Iterator[Watched]:
    """Yield a page of the Airflow at `url`, logged in by its form."""
    with chromium() as browser, watched_page(browser, url, timezone_id="UTC") as watched:
        page = watched.page
        page.goto("/")
        page.get_by_label("Username").fill(user)
        page.get_by_label("Password").fill(password)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/")
        watched.complaints.clear()  # before the login Airflow's own page is refused its settings
        yield watched


def count_colours(canvas: Locator) -> int:
    """Return the number of colours in a chart; a blank one has one or two."""
    colours: int = canvas.evaluate(
        """(canvas) => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    return colours
