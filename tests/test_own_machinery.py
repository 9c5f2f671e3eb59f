"""What the tests' own machinery does: dealing files to workers, and telling who changed the process."""

import os
import re
import shutil
import subprocess
import sys
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

HANGS = """
import time
from pathlib import Path
import pytest

@pytest.fixture
def service():
    yield
    Path("stopped").touch()

@pytest.mark.timeout(1)
def test_hangs(service):
    time.sleep(60)

def test_next():
    pass
"""

DRILLS_FIRST = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.reverse()
"""
"""Drills are put last: what ends with the session would seem to end with them."""


def test_every_file_that_is_dealt_with_others_is_there() -> None:
    named = [name for names in longest_first._SHARED.values() for name in names]
    for beginning in (*named, *(set(longest_first._LONG) - set(longest_first._SHARED))):
        assert list(ROOT.glob(f"{beginning}*")), beginning


def test_files_that_share_are_one_unit() -> None:
    pages, durability = (f"tests/end_to_end/test_{name}.py" for name in ("pages", "durability"))
    assert longest_first._unit(pages) == longest_first._unit(durability) != pages
    assert longest_first._unit("tests/recipes/test_gpus.py") == "tests/recipes/test_gpus.py"


def test_all_that_needs_nemo_shares_its_process() -> None:
    asks = re.compile(r"\b(train: Train|warm_trainer: WarmTrainer)\b")
    files = [path for path in ROOT.glob("tests/trainer/test_*.py") if asks.search(path.read_text())]
    units = {path.name: longest_first._unit(path.relative_to(ROOT).as_posix()) for path in files}
    assert set(units.values()) == {"a process with NeMo"}, units


def test_all_that_needs_a_slurm_alone_shares_it() -> None:
    """Its daemons compute until their worker ends. An Airflow and what trains have one of their own."""
    others = ("end_to_end", "drills", "trainer")
    files = [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("tests/*/**/test_*.py")
        if "slurm: MiniSlurm" in path.read_text() and path.relative_to(ROOT).parts[1] not in others
    ]
    units = {file: longest_first._unit(file) for file in files}
    assert len(units) > 5
    assert set(units.values()) == {"a Slurm"}, units


@pytest.mark.long
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


@pytest.mark.long
def test_a_test_that_hangs_fails_by_itself(pytester: pytest.Pytester) -> None:
    """Who shares its worker goes on, and what it has started is stopped."""
    shutil.copy(ROOT / "pyproject.toml", pytester.path)
    pytester.mkdir("tests").joinpath("test_hangs.py").write_text(HANGS)
    ended = pytester.runpytest_subprocess("-n", "1", "-p", "no:cacheprovider")
    ended.assert_outcomes(failed=1, passed=1)
    assert (pytester.path / "stopped").exists()


@pytest.mark.service
def test_what_is_shared_is_made_once_and_an_airflow_is_stopped_after_the_last_test_of_its_folder(
    tmp_path: Path,
) -> None:
    """By pytest's plan of a run, in which nothing is started."""
    (tmp_path / "drills_first.py").write_text(DRILLS_FIRST)
    files = [
        "test_pid_namespace.py",
        *("judging/test_causes.py", "judging/test_drift.py", "reporting/test_report.py", "web/test_week.py"),
        *("end_to_end/test_confirming.py", "drills/test_pool_slots.py"),
    ]
    planned = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "drills_first", "-p", "no:cacheprovider", "--setup-plan"]
        + [f"tests/{file}" for file in files],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert planned.returncode == 0, planned.stdout + planned.stderr
    of_interest = (
        r"(SETUP|TEARDOWN) +[SP] (site|airflow|sixty_cells|half_years|moved_together)\b|tests/\w+(?=.*::)"
    )
    matches = (re.match(of_interest, line.strip()) for line in planned.stdout.splitlines())
    found = [match[0] for match in matches if match]
    lines = [line for line, before in zip(found, [None, *found], strict=False) if line != before]
    assert lines == [
        *("SETUP    P site", "tests/drills", "TEARDOWN P site"),
        *("SETUP    P airflow", "tests/end_to_end", "TEARDOWN P airflow"),
        *("SETUP    S sixty_cells", "tests/web", "SETUP    S half_years", "tests/reporting", "tests/judging"),
        *("SETUP    S moved_together", "tests/judging", "tests/test_pid_namespace"),
        *("TEARDOWN S moved_together", "TEARDOWN S half_years", "TEARDOWN S sixty_cells"),
    ]
