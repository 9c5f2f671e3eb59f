"""The process behind `steptime up`: keeps Airflow's components running, and ends them all when it is ended.

`airflow standalone` does not restart a component that dies, and leaves its children behind when stopped.
This supervisor leads a session of its own, so that everything Airflow starts is found by the session's id.
Each component is forked from it and leads a process group; a dead one is started again after a growing pause;
SIGTERM stops them all. Started by `steptime.service.standalone` as `python -m steptime.service.supervisor`.
"""

import importlib.metadata
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil

from steptime import settings
from steptime.files import write_whole
from steptime.frozen import Frozen
from steptime.service.component import (
    API_SERVER,
    DAG_PROCESSOR,
    Component,
    ComponentState,
    fork_airflow,
    import_program,
    import_shared,
    log_file,
)

# No log servers: they are for workers on other machines, and here the api-server reads the files.
COMPONENTS: dict[str, tuple[str, ...]] = {
    API_SERVER: ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    DAG_PROCESSOR: (DAG_PROCESSOR,),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
STOP_GRACE_S = 15.0
LEAST_GRACE_S = 5.0
"""What the api-server is given if the others have used up the grace."""
_POLL_S = 0.5

log = logging.getLogger("steptime.supervisor")


class SupervisorState(Frozen):
    """The supervisor's state, in `components.json`; components start when the database is prepared."""

    preparing_database: bool
    components: tuple[ComponentState, ...] = ()


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
            component.wait(max(LEAST_GRACE_S, deadline - time.monotonic()))
    for member in session_members(os.getpid()):
        if member.pid != os.getpid():
            with suppress(psutil.NoSuchProcess):
                log.warning("killing process %d (%s), left behind", member.pid, member.name())
                member.kill()


def import_and_prepare_database() -> int:
    """Import Airflow, and make its database if its version requires that, with all other imports meanwhile.

    Returns the exit code of what makes or migrates it.
    """
    root = settings.airflow_home()
    database, done = root / "airflow.db", root / "airflow.db.version"
    version = importlib.metadata.version("apache-airflow-core")
    import_program()
    if database.is_file() and done.is_file() and done.read_text() == version:
        return 0
    migration = fork_airflow("database", ("db", "migrate"))
    import_shared()
    migration.join()
    code = 1 if migration.exitcode is None else migration.exitcode
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
    if import_and_prepare_database() != 0:
        log.error("the database could not be prepared: see %s", log_file("database"))
        return 1
    supervise([Component(name, arguments) for name, arguments in COMPONENTS.items()], stop)
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
