"""One component of Airflow: a process forked from the supervisor, which has made Airflow's imports.

Each component would otherwise import Airflow, its API and steptime by itself, and so would each process that
reads a DAG file: half of the CPU that a start takes.
"""

import gc
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import cast

from setproctitle import setproctitle

from steptime import settings
from steptime.frozen import Frozen
from steptime.large_imports import uncollected

LONGEST_PAUSE_S = 60.0
_GOOD_RUN_S = 120.0
"""A component that ran this long starts again without a pause when it dies."""
_LOOKS_S = 0.1
API_SERVER = "api-server"
DAG_PROCESSOR = "dag-processor"
_LATER = 10
"""How much nicer than the others the dag-processor is: it reads all files at a start, when those who wait
for the api-server or a first task need the cores; Airflow has the DAGs that have not changed anyway."""
# By name: the supervisor needs no Airflow to be imported, and reports one that is broken.
_PROGRAM = "airflow.__main__"
_SHARED = (
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.cli.commands.triggerer_command",
    "airflow.api_fastapi.app",
    "airflow.api_fastapi.execution_api.routes",
    "alembic.runtime.environment",
    "steptime.airflow.dag_builder",
    "steptime.airflow.plugin",
    "steptime.airflow.sweep.dag",
    "steptime.judging.comparison",
    "steptime.results.quality",
    "steptime.tracking.following",
)
_SHARED_CALLS = (
    ("sqlalchemy.orm", "configure_mappers"),
    ("steptime.airflow.dag_builder", "build_each_once"),
    ("steptime.airflow.execution_api", "keep_newest_versions"),
)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_FORK = multiprocessing.get_context("fork")
log = logging.getLogger("steptime.supervisor")


class ComponentState(Frozen):
    """What the supervisor knows of one component."""

    name: str
    pid: int | None
    """None while it waits to be started again."""
    starts: int
    last_exit_code: int | None


def log_file(component: str) -> Path:
    """Return where stdout and stderr of a component (or of `database`, `supervisor`) go."""
    return settings.airflow_home() / "service" / f"{component}.log"


def import_program() -> None:
    """Import Airflow's program. No thread is started and no connection opened by that: it can be forked."""
    with uncollected():
        importlib.import_module(_PROGRAM)


@cache
def import_shared() -> None:
    """Import what several components use, and keep the garbage collector of their processes off it.

    What cannot be imported is reported by the component that needs it, too, in its log.
    """
    with uncollected():
        for name in _SHARED:
            _if_possible(name)
    # Not within that: DAGs that are built and not kept are garbage, 12 MB that would stay.
    for module, function in _SHARED_CALLS:
        _if_possible(module, function)
    gc.freeze()


def _if_possible(module: str, function: str | None = None) -> None:
    """Import a module and call its function; Airflow runs without that as well, only slower.

    Both may fail in many ways where Airflow has another version.
    """
    try:
        imported = importlib.import_module(module)
        if function is not None:
            getattr(imported, function)()
    except Exception as error:
        log.warning("left out %s: %s: %s", module, type(error).__name__, error)


def fork_airflow(name: str, arguments: tuple[str, ...]) -> ForkProcess:
    """Fork a process that does what the program `airflow` does with `arguments`.

    It leads a process group, and its output is appended to the log file of `name`. It ends without taking
    its objects apart, for which Airflow's processes would take 1 to 3 s of CPU each.
    """
    # Airflow's scheduler heeds a signal in no process of multiprocessing but the one of this name.
    process = _FORK.Process(target=_run_airflow, args=(name, arguments), name="MainProcess")
    # Not for the supervisor's own handlers, which the new process has until it resets them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        process.start()
        with suppress(ProcessLookupError):  # here as well, as its group may be killed before it has run
            os.setpgid(_id(process), _id(process))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return process


def _id(process: ForkProcess) -> int:
    return cast("int", process.pid)


def _run_airflow(name: str, arguments: tuple[str, ...]) -> None:
    os.setpgid(0, 0)
    with log_file(name).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if name == DAG_PROCESSOR:
        os.nice(_LATER)
    if name == API_SERVER:
        _if_possible("steptime.airflow.execution_api", "keep_newest_versions")
        _if_possible("steptime.airflow.execution_api", "make_versions_at_start")
    if name == "triggerer":
        _if_possible("steptime.airflow.ends", "see_ends_soon")
    setproctitle(f"airflow {name}")
    sys.argv = ["airflow", *arguments]
    importlib.import_module(_PROGRAM).main()


class Component:
    """One component of Airflow: its process, how often it was started, and when it may start again."""

    def __init__(self, name: str, arguments: tuple[str, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.process: ForkProcess | None = None
        self.starts = 0
        self.failures_in_a_row = 0
        self.last_exit_code: int | None = None
        self._started_at = 0.0
        self._start_at = 0.0

    def keep(self, now: float) -> bool:
        """Notice its end, and start it when its pause is over; return whether anything changed."""
        if self.process is None:
            if now < self._start_at:
                return False
            self._start(now)
            return True
        code = self.process.exitcode
        if code is None:
            return False
        # A dead scheduler leaves its idle workers waiting on a pipe for ever.
        self._kill_group()
        self.process, self.last_exit_code = None, code
        self._pause(now, f"ended with code {code}", good_run=now - self._started_at >= _GOOD_RUN_S)
        return True

    def _start(self, now: float) -> None:
        """Start it. Raises OSError if the first start fails; a later one is tried again after a pause."""
        if self.name != API_SERVER:  # it has most to import, and begins with that at once
            import_shared()
        try:
            self.process = fork_airflow(self.name, self.arguments)
        except OSError as error:  # too little memory or too many processes, for now
            if not self.starts:
                raise
            self._pause(now, f"cannot be started ({error})")
            return
        self.starts += 1
        self._started_at = now
        log.info("%s started, process %d", self.name, self.process.pid)

    def _pause(self, now: float, why: str, *, good_run: bool = False) -> None:
        self.failures_in_a_row = 1 if good_run else self.failures_in_a_row + 1
        pause = 0.0 if good_run else min(LONGEST_PAUSE_S, 2.0 ** (self.failures_in_a_row - 1))
        log.warning("%s %s; starting it again in %.0f s", self.name, why, pause)
        self._start_at = now + pause

    def terminate(self) -> None:
        """Ask it to end."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; kill it if that takes too long, and whatever is left of its process group."""
        if self.process is None:
            return
        deadline = time.monotonic() + timeout_s
        # What it has forked can outlive it, and then a wait for its end would last to the deadline.
        while self.process.exitcode is None and time.monotonic() < deadline:
            self.process.join(_LOOKS_S)
        if self.process.exitcode is None:
            log.warning("%s did not end in time", self.name)
        else:
            log.info("%s ended with code %d", self.name, self.process.exitcode)
        self._kill_group()
        self.process.join()

    def state(self) -> ComponentState:
        """Return the state for others to read."""
        return ComponentState(
            name=self.name,
            pid=self.process.pid if self.process else None,
            starts=self.starts,
            last_exit_code=self.last_exit_code,
        )

    def _kill_group(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(_id(self.process), signal.SIGKILL)
