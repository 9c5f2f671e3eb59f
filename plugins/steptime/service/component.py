"""One component of Airflow, such as its scheduler: a child process of the supervisor."""

import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from steptime import settings
from steptime.frozen import Frozen

LONGEST_PAUSE_S = 60.0
_GOOD_RUN_S = 120.0
"""A component that ran this long is restarted without a pause."""
API_SERVER = "api-server"

log = logging.getLogger("steptime.supervisor")


class ComponentState(Frozen):
    """What the supervisor knows about one component."""

    name: str
    pid: int | None
    """None while it is not running."""
    starts: int
    last_exit_code: int | None


def log_file(component: str) -> Path:
    """Return the file with stdout and stderr of a component (or of `database`, `supervisor`)."""
    return settings.airflow_home() / "service" / f"{component}.log"


def start_airflow(name: str, arguments: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    """Start `airflow ARGUMENTS` in its own process group, and append its output to the log file of `name`.

    It stays in the supervisor's session, by which `steptime down` finds it if the supervisor is killed.
    """
    with log_file(name).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "airflow", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )


class Component:
    """A component of Airflow: its process, how often it was started, and when it may be restarted."""

    def __init__(self, name: str, arguments: tuple[str, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.failures_in_a_row = 0
        self.last_exit_code: int | None = None
        self._started_at = 0.0
        self._start_at = 0.0

    def keep(self, now: float) -> bool:
        """Start it if it is not running and its pause is over; return whether its state changed.

        `now` is in seconds of a monotonic clock. Raises OSError if the first start fails.
        """
        if self.process is None:
            if now < self._start_at:
                return False
            self._start(now)
            return True
        code = self.process.poll()
        if code is None:
            return False
        # The idle workers of a dead scheduler wait for tasks forever.
        self._kill_group()
        self.process, self.last_exit_code = None, code
        self._pause(now, f"ended with code {code}", good_run=now - self._started_at >= _GOOD_RUN_S)
        return True

    def _start(self, now: float) -> None:
        try:
            self.process = start_airflow(self.name, self.arguments)
        except OSError as error:  # for example, too many processes at the moment
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
        log.warning("%s %s; restarting it in %.0f s", self.name, why, pause)
        self._start_at = now + pause

    def terminate(self) -> None:
        """Send it SIGTERM."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, then kill its process group; if it is still running, it is killed, too."""
        if self.process is None:
            return
        started = time.monotonic()
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log.warning("%s is still running %.0f s after SIGTERM: killing it", self.name, timeout_s)
        else:
            log.info("%s ended with code %d after %.1f s", self.name, code, time.monotonic() - started)
        self._kill_group()
        self.process.wait()

    def state(self) -> ComponentState:
        """Return its state."""
        return ComponentState(
            name=self.name,
            pid=self.process.pid if self.process else None,
            starts=self.starts,
            last_exit_code=self.last_exit_code,
        )

    def _kill_group(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
