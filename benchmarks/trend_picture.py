"""Take the picture of docs/performance.md: the Trend page of a figure that `make bench` has kept.

python benchmarks/trend_picture.py "steptime --help" [--output docs/images]
"""

import argparse
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import ViewportSize

from page_server import serving
from steptime import settings
from steptime.errors import SystemFailure
from steptime.results.store import Store

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from browser import chromium

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = ViewportSize(width=1366, height=700)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PATIENCE_MS = 120_000
"""A machine that is busy may take as long to draw a page."""


def take(url: str, job_name: str, output: Path) -> None:
    """Write `figure-trend-light.png` and `figure-trend-dark.png` of the series that a run is in.

    Raises SystemFailure without a browser.
    """
    with serving(url) as (api, _), chromium() as browser:
        for scheme in SCHEMES:
            page = browser.new_page(viewport=SIZE, color_scheme=scheme, timezone_id="UTC")
            page.set_default_timeout(PATIENCE_MS)
            page.goto(f"{api.removesuffix('api/')}?view=trend&series={job_name}")
            page.locator("canvas#trend").wait_for()
            page.wait_for_load_state("networkidle")
            path = output / f"figure-trend-{scheme}.png"
            page.screenshot(path=path, animations="disabled")
            print(f"{path} ({path.stat().st_size / 1024:.0f} KiB)")


def main() -> int:
    """Print what was written; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("figure", help="its name, as 'bench.py --table' prints it")
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder of the pictures (docs/images)")
    asked = parser.parse_args()
    url = f"sqlite:///{settings.home() / 'benchmarks.db'}"
    newest = Store(url).results(size=asked.figure, limit=1)
    if not newest:
        print(f"trend_picture: {url} has no figure '{asked.figure}': run 'make bench'", file=sys.stderr)
        return 1
    try:
        take(url, newest[0]["job_name"], asked.output)
    except SystemFailure as error:
        print(f"trend_picture: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
