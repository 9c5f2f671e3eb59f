"""Half a year to be judged, and an empty store."""

from pathlib import Path

import pytest
from half_year import half_years, moved_together

from steptime.results.store import Store

__all__ = ["half_years", "moved_together"]  # fixtures


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(f"sqlite:///{tmp_path / 'store' / 'steptime.db'}")
