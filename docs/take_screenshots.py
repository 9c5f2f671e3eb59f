"""Take the picture of docs/guide/first-run.md from the running Airflow of STEPTIME_HOME: the trigger form.

`make demo` starts one; then `make screenshots`, which takes those of the pages from a made half year, too.
"""

import argparse
import sys
from pathlib import Path

from playwright.sync_api import Page, ViewportSize

from steptime.errors import SystemFailure, UserError
from steptime.service import processes
from steptime.service.standalone_config import ADMIN, password

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from browser import chromium

IMAGES = Path(__file__).parent / "images"
DAG = "steptime_llama3.1-25.04"
SIZE = ViewportSize(width=1440, height=1900)
"""High enough for the whole form, which scrolls in smaller windows."""
PATIENCE_MS = 120_000
"""A busy machine may take this long to draw a page."""


def main() -> int:
    """Write `trigger-form.png`; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of the pictures (docs/images)")
    try:
        take(parser.parse_args().output)
    except (UserError, SystemFailure) as error:
        print(f"take_screenshots: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def take(output: Path) -> None:
    """Take the pictures. Raises UserError if there is nothing to show, SystemFailure without a browser."""
    service = processes.running()
    if service is None:
        raise UserError("Airflow is not running: type 'make demo', or 'steptime up' for one without results.")
    output.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        page = browser.new_page(base_url=service.url, viewport=SIZE, timezone_id="UTC")
        page.set_default_timeout(PATIENCE_MS)
        log_in(page)
        trigger_form(page, output / "trigger-form.png")


def log_in(page: Page) -> None:
    """Log in with Airflow's form, as the admin of the standalone Airflow."""
    page.goto("/auth/login")
    page.get_by_label("Username").fill(ADMIN)
    page.get_by_label("Password").fill(password())
    page.keyboard.press("Enter")
    page.wait_for_url("**/")


def trigger_form(page: Page, path: Path) -> None:
    """Take the picture of the form that starts a DAG, with the options that most runs need."""
    page.goto(f"/dags/{DAG}/runs")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog").filter(has_text="Trigger Dag - ")
    form.locator("#element_gpus").wait_for()
    page.wait_for_load_state("networkidle")
    form.screenshot(path=path, animations="disabled")
    print(f"{path} ({path.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    sys.exit(main())
