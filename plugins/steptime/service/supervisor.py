"""The process behind `steptime up`: keeps Airflow's components running, and ends them all when it is ended.

`airflow standalone` does not restart a component that dies, and leaves its children behind when stopped.
This supervisor leads a session of its own, so that everything Airflow starts is found by the session's id.
Each component leads a process group in it; a dead one is started again after a growing pause; SIGTERM stops
them all. Started by `steptime.service.standalone` as `python -m steptime.service.supervisor`.
"""

import importlib.metadata
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil

from steptime import settings
from steptime.files import write_whole
from steptime.frozen import Frozen

API_SERVER = "api-server"
# No log servers: they are for workers on other machines, and here the api-server reads the files.
COMPONENTS: dict[str, tuple[str, ...]] = {
    API_SERVER: ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
LONGEST_PAUSE_S = 60.0
STOP_GRACE_S = 15.0
_LEAST_GRACE_S = 5.0
"""What the api-server is given if the others have used up the grace."""
AIRFLOW = (sys.executable, "-P", "-m", "airflow")
"""The program, without the current folder, where a file may bear the name of a module."""
_POLL_S = 0.5
_GOOD_RUN_S = 120.0
"""A component that ran this long starts again without a pause when it dies."""

log = logging.getLogger("steptime.supervisor")


class ComponentState(Frozen):
    """What the supervisor knows of one component."""

    name: str
    pid: int | None
    """None while it waits to be started again."""
    starts: int
    last_exit_code: int | None


class SupervisorState(Frozen):
    """The supervisor's state, in `components.json`; components start when the database is prepared."""

    preparing_database: bool
    components: tuple[ComponentState, ...] = ()


def log_file(component: str) -> Path:
    """Return where stdout and stderr of a component (or of `database`, `supervisor`) go."""
    return settings.airflow_home() / "service" / f"{component}.log"


def state_file() -> Path:
    """Return where the supervisor writes its state."""
    return settings.airflow_home() / "service" / "components.json"


def session_members(session: int) -> list[psutil.Process]:
    """Return the living processes of a session, without zombies, which hold nothing."""
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


class Component:
    """One component of Airflow: its process, how often it was started, and when it may start again."""

    def __init__(self, name: str, command: tuple[str, ...]) -> None:
        self.name = name
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.failures_in_a_row = 0
        self.last_exit_code: int | None = None
        self._started_at = 0.0
        self._start_at = 0.0

    def start(self, now: float) -> None:
        """Start it as the leader of a process group, its output appended to its log file."""
        with log_file(self.name).open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self.starts += 1
        self._started_at = now
        log.info("%s started, process %d", self.name, self.process.pid)

    def keep(self, now: float) -> bool:
        """Notice its end, and start it when its pause is over; return whether anything changed."""
        if self.process is None:
            if now < self._start_at:
                return False
            self.start(now)
            return True
        code = self.process.poll()
        if code is None:
            return False
        # A dead scheduler leaves its idle workers waiting on a pipe for ever.
        _signal_group(self.process.pid, signal.SIGKILL)
        good_run = now - self._started_at >= _GOOD_RUN_S
        self.failures_in_a_row = 1 if good_run else self.failures_in_a_row + 1
        pause = 0.0 if good_run else min(LONGEST_PAUSE_S, 2.0 ** (self.failures_in_a_row - 1))
        log.warning("%s ended with code %d; starting it again in %.0f s", self.name, code, pause)
        self.process, self.last_exit_code, self._start_at = None, code, now + pause
        return True

    def terminate(self) -> None:
        """Ask it to end."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; kill it if that takes too long, and whatever is left of its process group."""
        if self.process is None:
            return
        try:
            code = self.process.wait(timeout_s)
            log.info("%s ended with code %d", self.name, code)
        except subprocess.TimeoutExpired:
            log.warning("%s did not end in time", self.name)
        _signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def state(self) -> ComponentState:
        """Return the state for others to read."""
        return ComponentState(
            name=self.name,
            pid=self.process.pid if self.process else None,
            starts=self.starts,
            last_exit_code=self.last_exit_code,
        )


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        log.debug("process group %d has ended", group)


def supervise(components: list[Component], stop: threading.Event) -> None:
    """Keep `components` running until `stop` is set; then end them and everything they started."""
    try:
        while not stop.is_set():
            changes = [component.keep(time.monotonic()) for component in components]
            if any(changes):
                state = SupervisorState(
                    preparing_database=False, components=tuple(component.state() for component in components)
                )
                write_whole(state_file(), state.model_dump_json(indent=2))
            stop.wait(_POLL_S)
    finally:
        _end(components)


def _end(components: list[Component]) -> None:
    """SIGTERM to each component, which ends its own children; after the grace, SIGKILL to what is left.

    Only the components are asked: a task still running then is killed without its `on_kill`, which would
    cancel its training job. Airflow tries it again after the next start, and it finds its job by name.
    """
    deadline = time.monotonic() + STOP_GRACE_S
    # The api-server last: the others call it at their end.
    for last in (False, True):
        ending = [component for component in components if (component.name == API_SERVER) is last]
        for component in ending:
            component.terminate()
        for component in ending:
            component.wait(max(_LEAST_GRACE_S, deadline - time.monotonic()))
    for member in session_members(os.getpid()):
        if member.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                log.warning("killing process %d (%s), left behind", member.pid, member.name())
                member.kill()


def prepare_database() -> int:
    """Create or migrate Airflow's database if its version requires that; return the exit code."""
    root = settings.airflow_home()
    database, done = root / "airflow.db", root / "airflow.db.version"
    version = importlib.metadata.version("apache-airflow-core")
    if database.is_file() and done.is_file() and done.read_text() == version:
        return 0
    with log_file("database").open("ab") as output:
        code = subprocess.call(
            [*AIRFLOW, "db", "migrate"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if code == 0:
        # Readers do not wait for writers then; the mode stays with the file.
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        write_whole(done, version)
    return code


def main() -> int:
    """Run until SIGTERM or SIGINT; 1 if the database could not be prepared."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()

    def ask_to_stop(number: int, _frame: object) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        stop.set()

    os.chdir(settings.airflow_home())
    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    write_whole(state_file(), SupervisorState(preparing_database=True).model_dump_json(indent=2))
    if prepare_database() != 0:
        log.error("the database could not be prepared: see %s", log_file("database"))
        return 1
    supervise([Component(name, (*AIRFLOW, *command)) for name, command in COMPONENTS.items()], stop)
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
