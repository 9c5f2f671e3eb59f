"""The program as a separate process: how it ends on signals and broken outputs, and what it imports."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest
import zstandard

pytestmark = pytest.mark.service


@pytest.fixture
def start(here):
    """Return a function that starts the real program, for what only a separate process can show."""

    def _start(*arguments, **options):
        program = Path(sys.executable).with_name("steptime")
        return subprocess.Popen([program, *arguments], stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]

    return _start


def test_a_reader_that_goes_away(start):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("recipes", "--format", "csv", stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == -signal.SIGPIPE, "as other tools end"


@pytest.mark.parametrize("closed", [(1,), (1, 2), (2,)])
def test_closed_outputs(closed, here):
    close = " ".join(f"{number}>&-" for number in closed)
    program = Path(sys.executable).with_name("steptime")
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" recipes --format csv {close}', program],
        capture_output=True,
        check=False,
    )
    if 1 in closed:
        said = b"" if 2 in closed else b"steptime: its output is closed: give it one, as in '> results.txt'."
        assert (done.returncode, done.stderr[: len(said)]) == (2, said)
        assert b"fault of steptime" not in done.stderr
    else:
        assert (done.returncode, done.stdout.count(b",") > 100) == (0, True)


def test_an_import_that_is_terminated_leaves_nothing(start, here, monkeypatch):
    home = here / "home"
    monkeypatch.setenv("STEPTIME_HOME", str(home))
    log = tarfile.TarInfo("log.out")
    log.size = 1 << 30
    packer, zeros = zstandard.ZstdCompressor().compressobj(), bytes(1 << 24)
    packed = [packer.compress(part) for part in (log.tobuf(), *[zeros] * 64, bytes(1 << 10))]
    skipped = b"\x50\x2a\x4d\x18" + (8 << 20).to_bytes(4, "little") + os.urandom(8 << 20)
    archive = here / "made.tar.zst"
    archive.write_bytes(b"".join([*packed, packer.flush(), skipped]))
    process = start("results", "import", str(archive), "--cluster", "mine", stdout=subprocess.PIPE)
    while not list(home.glob(".import.*/files/*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    process.terminate()
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == -signal.SIGTERM
    assert not list(home.glob(".import.*"))


WRITES_JSON = """
import os, sys, time
import pydantic
from steptime import cli

class Row(pydantic.BaseModel):
    number: int

    @pydantic.field_serializer("number")
    def _slowly(self, number: int) -> int:
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(60 if len(sys.argv) == 2 else 0)
        return number

cli.app = lambda **_: Row(number=1).model_dump_json()
cli.main()
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, -signal.SIGTERM, b""), (signal.SIGINT, 2, b"steptime: stopped.\n")],
)
def test_a_signal_while_json_is_written_is_no_fault(number, code, said, here):
    command = [sys.executable, "-c", WRITES_JSON, str(int(number))]
    done = subprocess.run(command, cwd=here, capture_output=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_is_ignored_stays_so(number, here):
    """As in a job of a shell's background, or behind `trap '' TERM`."""
    ignoring = ("/bin/sh", "-c", "trap '' INT TERM; exec \"$@\"", "sh")
    command = [*ignoring, sys.executable, "-c", WRITES_JSON, str(int(number)), "at once"]
    done = subprocess.run(command, cwd=here, capture_output=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "command", ["recipes --format csv", "plan llama3.1 --gpus 2"], ids=["much", "less than a buffer"]
)
def test_a_full_disk(start, command):
    with Path("/dev/full").open("wb") as full:
        process = start(*command.split(), stdout=full)
        assert process.communicate(timeout=60)[1] == b"steptime: cannot go on: No space left on device.\n"
    assert process.returncode == 2


def test_a_terminal_without_unicode_and_without_colour(start):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    process = start("plan", "llama3.1", "--gpus", "2", stdout=subprocess.PIPE, env=environment)
    printed, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (0, b"")
    assert rb"tiny\xb7fp32\xb72" in printed


def test_ctrl_c(start, here):
    with (here / "log.out").open("wb") as log:
        log.truncate(2 << 30)  # takes ten seconds to read
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    process = start("parse", "log.out", stdout=subprocess.PIPE)
    signal.signal(signal.SIGINT, former)
    while str(here / "log.out") not in {file.path for file in psutil.Process(process.pid).open_files()}:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130


def test_the_program_starts_without_imports_that_take_seconds(here):
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
