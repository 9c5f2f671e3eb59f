import pytest

from steptime.store.run_queries import Store


@pytest.fixture
def store(tmp_path):
    """Return an empty store."""
    return Store(f"sqlite:///{tmp_path / 'store' / 'steptime.db'}")
