"""Restore environment variables and the working folder after each module, so that the order does not matter.

With STRICT_PROCESS in the environment a module that leaves them changed fails, and names the tests.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

STRICT = "STRICT_PROCESS"
_FOLDER = "the working folder"
_OTHERS = ("PYTEST_CURRENT_TEST", "AIRFLOW_CTX_", "_AIRFLOW_")
"""Beginnings of variables that pytest and Airflow set by themselves while tests run."""

_before: dict[str, str] = {}
_changed_after: dict[str, str] = {}
"""The test after which a variable first was not as before the module."""
_test = ""


def _state() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    return {**variables, _FOLDER: str(Path.cwd())}


def _changed() -> set[str]:
    now = _state()
    return {name for name in now.keys() | _before.keys() if now.get(name) != _before.get(name)}


@pytest.fixture(scope="module", autouse=True)
def unchanged_process() -> Iterator[None]:
    """Put back what a module has changed of this process."""
    _before.clear()
    _before.update(_state())
    _changed_after.clear()
    yield
    left = _changed()
    for name in left:
        if name == _FOLDER:
            os.chdir(_before[name])
        elif name in _before:
            os.environ[name] = _before[name]
        else:
            del os.environ[name]
    told = [f"{name} ({_changed_after.get(name, _test)})" for name in sorted(left)]
    assert not told or STRICT not in os.environ, f"left changed, after these tests: {', '.join(told)}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what the test before this one has left."""
    global _test  # noqa: PLW0603 (pytest runs one test at a time)
    if _before and _test:
        changed = _changed()
        for name in _changed_after.keys() - changed:
            del _changed_after[name]
        for name in changed:
            _changed_after.setdefault(name, _test)
    _test = item.nodeid
