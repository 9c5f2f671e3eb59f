"""Texts that are kept in tests/golden for review: STEPTIME_UPDATE_GOLDEN=1 rewrites them."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def assert_kept(path: str, text: str) -> None:
    """Assert that a text is the one in this file of tests/golden."""
    file = GOLDEN / path
    if os.environ.get("STEPTIME_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text()
