"""The machine that tests find, drawn by a seed: its time zone and temporary folder, and the tests' order.

What works only where it was made would otherwise pass. The seed is the commit's, so that a commit is always
tested alike and the next one otherwise; the header of a run names it, and STEPTIME_TEST_SEED=17 repeats it.
"""

import os
import random
import subprocess
import tempfile
import time
from itertools import groupby
from pathlib import Path

SEED = "STEPTIME_TEST_SEED"
ZONES = ("UTC", "Asia/Tokyo", "America/St_Johns", "Pacific/Chatham", "Europe/Berlin")
"""Ahead of UTC and behind it, by whole hours and by fractions, with and without summer time."""
FOLDERS = ("", "a-temporary-folder", "users/maria-fernanda-gonzalez/scratch")
"""Below the machine's temporary folder; addresses of sockets, at most 107 characters long, have to fit."""


def enter():
    """Set the drawn time zone and temporary folder, also for child processes; return the header line."""
    seed = os.environ.setdefault(SEED, _seed_of_commit())
    draw = random.Random(seed)  # noqa: S311 - a machine, not a secret
    zone, folder = draw.choice(ZONES), draw.choice(FOLDERS)
    if Path("/usr/share/zoneinfo", zone).is_file():
        os.environ["TZ"] = zone
        time.tzset()
    else:
        zone = f"the machine's, as it does not know {zone}"
    path = Path(os.environ.setdefault("STEPTIME_TEST_TMPDIR", tempfile.gettempdir()), folder)
    path.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(path)
    return f"machine: {SEED}={seed}: time zone {zone}, temporary folder {path}"


def shuffled(items):
    """Return the tests with their files, and those of each file, in the seed's order."""
    draw = random.Random(os.environ[SEED])  # noqa: S311 - an order
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    draw.shuffle(files)
    for file in files:
        draw.shuffle(file)
    return [item for file in files for item in file]


def _seed_of_commit():
    """Return the first digits of the checkout's commit; `0` without git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"],  # noqa: S607 - whichever git there is
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "0"
    return done.stdout.strip() or "0"
