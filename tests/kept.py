"""Texts that are kept in tests/golden for review: STEPTIME_UPDATE_GOLDEN=1 rewrites them."""

import os
import re
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
NAMES_OF_JOBS = {
    r"-[0-9a-f]{10}-(?=\d)": "-HASH-",
    r"\b[0-9a-f]{32}\b": "ID",
    r"_1\d{9}-\w+": "_TIME",
}
"""What differs from run to run in the names and folders of jobs, and what stands for it."""


def masked(text, placeholders):
    """Replace what differs from run to run: each pattern by its placeholder, in their order."""
    for pattern, placeholder in placeholders.items():
        text = re.sub(pattern, placeholder, text)
    return text


def assert_kept(path, text):
    """Assert that a text is the one in this file of tests/golden."""
    file = GOLDEN / path
    if os.environ.get("STEPTIME_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
