"""Restore environment variables and the working folder after each module, so that order does not matter.

With STRICT_PROCESS in the environment, a module fails if it leaves them changed.
"""

import os
from pathlib import Path

import pytest

STRICT = "STRICT_PROCESS"
_OTHERS = ("PYTEST_CURRENT_TEST", "AIRFLOW_CTX_", "_AIRFLOW_")
"""Prefixes of variables that pytest and Airflow set themselves while tests run."""


def _variables():
    return {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}


@pytest.fixture(scope="module", autouse=True)
def unchanged_process():
    """Restore what a module has changed in this process."""
    before, folder = _variables(), Path.cwd()
    yield
    after, moved = _variables(), Path.cwd() != folder
    left = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    os.chdir(folder)
    for name in left:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert not (left or moved) or STRICT not in os.environ, f"left changed: {left}, the folder: {moved}"
