"""What the tests' own machinery does: dealing files to workers, and telling who changed the process."""

from pathlib import Path

import longest_first
import pytest

pytest_plugins = "pytester"
ROOT = Path(__file__).parents[1]

LEAVES = """
import os

def test_first():
    os.environ["OF_THIS_TEST"] = "1"
    del os.environ["OF_THIS_TEST"]

def test_leaves():
    os.environ["LEFT"] = "1"
    os.chdir("/")

def test_last(monkeypatch):
    monkeypatch.setenv("TAKEN_BACK", "1")
"""


def test_every_file_that_is_dealt_with_others_is_there() -> None:
    named = [name for names in longest_first._SHARED.values() for name in names]
    for beginning in (*named, *(set(longest_first._LONG) - set(longest_first._SHARED))):
        assert list(ROOT.glob(f"{beginning}*")), beginning


def test_files_that_share_are_one_unit() -> None:
    pages, durability = (f"tests/end_to_end/test_{name}.py" for name in ("pages", "durability"))
    assert longest_first._unit(pages) == longest_first._unit(durability) != pages
    assert longest_first._unit("tests/recipes/test_gpus.py") == "tests/recipes/test_gpus.py"


def test_who_leaves_the_process_changed_is_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(LEAVES)
    pytester.makeconftest("from unchanged_process import pytest_runtest_setup, unchanged_process")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    monkeypatch.setenv("STRICT_PROCESS", "1")
    ended = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    ended.assert_outcomes(passed=3, errors=1)
    told = ended.stdout.str()
    for name in ("LEFT", "the working folder"):
        assert f"{name} (test_who_leaves_the_process_changed_is_named.py::test_leaves)" in told
    for name in ("OF_THIS_TEST", "TAKEN_BACK"):
        assert f"{name} (" not in told
