"""The program as a separate process: how it ends on signals and broken outputs, and what it imports."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.service


@pytest.fixture
def start(here: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Return a function that starts the real program, for what only a separate process can show."""

    def _start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
        program = Path(sys.executable).with_name("steptime")
        return subprocess.Popen([program, *arguments], stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]

    return _start


def test_a_reader_that_goes_away(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("recipes", "--format", "csv", stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == -signal.SIGPIPE, "as other tools end"


def test_a_full_disk(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start("recipes", "--format", "csv", stdout=full)
        assert process.communicate(timeout=60)[1] == b"steptime: cannot go on: No space left on device.\n"
    assert process.returncode == 2


def test_a_terminal_without_unicode_and_without_colour(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    process = start("plan", "llama3.1", "--gpus", "2", stdout=subprocess.PIPE, env=environment)
    printed, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, b"")
    assert rb"tiny\xb7fp32\xb72" in printed


def test_ctrl_c(start: Callable[..., subprocess.Popen[bytes]], here: Path) -> None:
    os.mkfifo(here / "log.out")
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    process = start("parse", "log.out", stdout=subprocess.PIPE)
    signal.signal(signal.SIGINT, former)
    with (here / "log.out").open("wb"):  # opening it waits until the program has opened it
        while psutil.Process(process.pid).status() != psutil.STATUS_SLEEPING:  # waits for the log's bytes
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


def test_the_program_starts_without_imports_that_take_seconds(here: Path) -> None:
    run = "import sys; from steptime.cli import _run; code = _run(); print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run(
        [sys.executable, "-c", f"{run}; sys.exit(code)", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=here,
    )
    assert ended.stdout
    slow = {"airflow", "alembic", "great_expectations", "httpx", "numpy", "pandas", "scipy", "sqlalchemy"}
    assert slow.isdisjoint(ended.stderr.split())
