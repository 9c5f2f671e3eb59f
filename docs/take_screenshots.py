"""Take the pictures of README.md and docs/ from the running Airflow of STEPTIME_HOME with its results.

`make demo` makes both; then `make screenshots`.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, sync_playwright

from steptime.airflow.addresses import RUN_ROUTE, dag_run_path
from steptime.errors import SystemFailure, UserError
from steptime.results.store import Store
from steptime.service import standalone
from steptime.service.standalone_config import ADMIN, password

IMAGES = Path(__file__).parent / "images"
SIZE = ViewportSize(width=1440, height=900)
PATIENCE_MS = 120_000
"""A machine that is busy may take as long to draw a page."""


def main() -> int:
    """Write `results.png`, `dag-run.png` and `trigger-form.png`; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of the pictures (docs/images)")
    try:
        take(parser.parse_args().output)
    except (UserError, SystemFailure) as error:
        print(f"take_screenshots: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def take(output: Path) -> None:
    """All pictures. Raises UserError where nothing is there to show, SystemFailure without a browser."""
    service = standalone.running()
    if service is None:
        raise UserError("Airflow is not running: type 'make demo', or 'steptime up' if there are results.")
    store = Store()
    newest = next((row for row in store.results(mode="performance") if row["dag_run_id"]), None)
    if newest is None:
        raise UserError("there are no results of a DAG run yet: type 'make demo'.")
    program = shutil.which("chromium")
    if program is None:
        raise SystemFailure("Chromium is missing: apt-get install -y chromium")
    output.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(base_url=service.url, viewport=SIZE, timezone_id="UTC")
        page.set_default_timeout(PATIENCE_MS)
        log_in(page)
        picture(page, "/plugin/step-times/steptime/?view=runs", output / "results.png")
        run = dag_run_path(newest["dag_id"], newest["dag_run_id"])
        picture(page, f"{run}/plugin/{RUN_ROUTE}", output / "dag-run.png")
        trigger_form(page, newest["dag_id"], output / "trigger-form.png")
        browser.close()


def log_in(page: Page) -> None:
    """Through Airflow's form, as the admin of the standalone Airflow."""
    page.goto("/auth/login")
    page.get_by_label("Username").fill(ADMIN)
    page.get_by_label("Password").fill(password())
    page.keyboard.press("Enter")
    page.wait_for_url("**/")


def picture(page: Page, address: str, path: Path) -> None:
    """One page of the Airflow UI, as soon as the results in its iframe are drawn."""
    page.goto(address)
    frame = page.frame_locator("iframe")
    for drawn in ("tbody tr[data-job]", "#step-time"):
        frame.locator(drawn).first.wait_for()
    page.screenshot(path=path, animations="disabled")
    report(path)


def trigger_form(page: Page, dag_id: str, path: Path) -> None:
    """The form that starts a DAG, its section about the scale open."""
    page.set_viewport_size({**SIZE, "height": 1400})  # the whole form: it scrolls in lower windows
    page.goto(f"/dags/{dag_id}/runs")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog").filter(has_text="Trigger Dag - ")
    form.get_by_role("button", name="Scale", exact=True).click()
    form.locator("#element_gpus").wait_for()
    page.wait_for_load_state("networkidle")
    form.screenshot(path=path, animations="disabled")
    report(path)


def report(path: Path) -> None:
    """Say what was written, and how large it is."""
    print(f"{path} ({path.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    sys.exit(main())
