"""The process behind `steptime up`: runs Airflow's components, restarts those that die, and ends them.

`airflow standalone` does not restart a component that dies, and leaves its children behind when stopped.
This supervisor leads its own session, by whose id everything that Airflow starts can be found. SIGTERM ends
it and all components. `steptime.service.standalone` starts it as `python -m steptime.service.supervisor`.
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
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import psutil

from steptime import settings
from steptime.files import write_whole
from steptime.frozen import Frozen
from steptime.waiting import backoff_s, poll_until

LONGEST_PAUSE_S = 60.0
_GOOD_RUN_S = 120.0
"""A component that ran this long is restarted without a pause."""
API_SERVER = "api-server"
# Without log servers: they serve the logs of workers on other machines; here the api-server reads the files.
COMPONENTS: dict[str, tuple[str, ...]] = {
    API_SERVER: ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
STOP_GRACE_S = 15.0
LEAST_GRACE_S = 5.0
"""The shortest time that a component has to end, even if the others have used up `STOP_GRACE_S`."""
_POLL_S = 0.5
_END_POLL_S = 0.05

log = logging.getLogger("steptime.supervisor")


class ComponentState(Frozen):
    """What the supervisor knows about one component of Airflow."""

    name: str
    pid: int | None
    """Process id; None while it is not running."""
    starts: int
    last_exit_code: int | None


def log_file(component: str) -> Path:
    """Return the path of the output of a component, or of `database` or `supervisor`."""
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
        """Start the component if it is not running, or record that it died; return whether either happened.

        After an early death it is started again once a pause is over. `now` is in seconds of a monotonic
        clock. Raises OSError if the first start fails.
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
        pause = 0.0 if good_run else backoff_s(self.failures_in_a_row, longest_s=LONGEST_PAUSE_S)
        log.warning("%s %s; restarting it in %.0f s", self.name, why, pause)
        self._start_at = now + pause

    def state(self) -> ComponentState:
        """Return the component's state."""
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


class SupervisorState(Frozen):
    """The state of the supervisor and of Airflow's components, as the file `components.json` keeps it."""

    preparing_database: bool
    """Whether Airflow's database is being created or migrated; components start afterwards."""
    components: tuple[ComponentState, ...] = ()


def state_file() -> Path:
    """Return the path of the file in which the supervisor keeps its state."""
    return settings.airflow_home() / "service" / "components.json"


def session_members(session: int) -> list[psutil.Process]:
    """Return the processes of a session, without zombies."""
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return members


def supervise(components: list[Component], stop: threading.Event) -> None:
    """Keep `components` running until `stop` is set; then end them and every process that they started."""
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
    """End the components, and kill whatever is left of this session after the grace period.

    A task that still runs then is killed without its `on_kill`, which would cancel its training job. Airflow
    retries the task after the next start, and the task finds its job by name.
    """
    end_components(
        os.getpid(), {component.process.pid: component.name for component in components if component.process}
    )
    for member in session_members(os.getpid()):
        if member.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                log.warning("killing process %d (%s), which was left behind", member.pid, member.name())
                member.kill()


def end_components(session: int, names: Mapping[int, str]) -> None:
    """Send SIGTERM to the components in a session, and wait up to the grace period for them to end.

    A component that ends on SIGTERM records its end in the database. After a SIGKILL its successor would have
    to wait until the last heartbeat is too old. `names` are the components by process id.
    """

    def living(*, api_server: bool) -> list[psutil.Process]:
        members = [member for member in session_members(session) if member.pid in names]
        return [member for member in members if (names[member.pid] == API_SERVER) is api_server]

    deadline = time.monotonic() + STOP_GRACE_S
    # The api-server is last because the others call it while they end.
    for api_server in (False, True):
        for member in living(api_server=api_server):
            with suppress(psutil.NoSuchProcess):
                member.terminate()
        poll_until(
            lambda: not living(api_server=api_server),  # noqa: B023 (called at once)
            every_s=_END_POLL_S,
            timeout_s=max(LEAST_GRACE_S, deadline - time.monotonic()),
        )


def prepare_database() -> int:
    """Create Airflow's database, or migrate it if Airflow's version has changed; return the exit code."""
    root = settings.airflow_home()
    database, done = root / "airflow.db", root / "airflow.db.version"
    version = importlib.metadata.version("apache-airflow-core")
    if database.is_file() and done.is_file() and done.read_text() == version:
        return 0
    code = start_airflow("database", ("db", "migrate")).wait()
    if code == 0:
        # With a write-ahead log readers do not wait for writers. SQLite keeps the mode in the file.
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        write_whole(done, version)
    return code


def main() -> int:
    """Supervise Airflow's components until SIGTERM or SIGINT; return 0.

    Returns 1 at once if the database could not be prepared.
    """
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
    supervise([Component(name, arguments) for name, arguments in COMPONENTS.items()], stop)
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
