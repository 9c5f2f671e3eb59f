"""Start, stop and inspect this machine's Airflow (`steptime up`, `down`, `status`): one per state folder."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from steptime import settings
from steptime.errors import SystemFailure
from steptime.files import write_whole
from steptime.frozen import Frozen
from steptime.local_services import Announce, failed_start, is_free, one_at_a_time
from steptime.process_identity import boot_id, start_tick
from steptime.service import supervisor
from steptime.service.processes import (
    STOP_TIMEOUT_S,
    Service,
    end_session,
    recorded,
    running,
    service_file,
    session,
    starts_of_components,
    supervisor_process,
    supervisor_state,
    why_not_running,
)
from steptime.service.rest import AirflowClient
from steptime.service.standalone_config import child_environment, write_config
from steptime.service.supervisor import log_file
from steptime.waiting import poll_until

DEFAULT_PORT = 8080
START_TIMEOUT_S = 300.0
_CONFIG_FILES_REPORT = "steptime_config_files.py"
"""The file in the folder of DAGs that makes none: its import error lists mistakes in configuration files."""
_PORTS_TRIED = 50
_READ_AT_START = ("STEPTIME_CONFIG_DIR", "STEPTIME_STORE_URL")
"""Variables that Airflow has from the shell that starts it."""
_STARTS_ALLOWED = 2
_POLL_S = 0.5


class _PortTaken(Exception):
    """Another program took the port that was free when Airflow's start began."""


class AirflowStatus(Frozen):
    """The state of this machine's Airflow, as `steptime status` shows it."""

    running: bool
    healthy: bool
    url: str | None = None
    health: dict[str, str] = Field(default_factory=dict)
    """Health by component: `healthy`, `unhealthy`, or another word of Airflow's."""
    restarts: dict[str, int] = Field(default_factory=dict)
    """Number of restarts by the supervisor, by component."""
    dags: tuple[str, ...] = ()
    import_errors: dict[str, str] = Field(default_factory=dict)
    """Reason that a DAG file cannot be read, by file name."""
    running_dag_runs: tuple[str, ...] = ()
    """DAG runs as `dag_id/run_id`."""
    problem: str | None = None


def up(
    announce: Announce, *, port: int | None = None, timeout_s: float = START_TIMEOUT_S
) -> tuple[Service, bool]:
    """Start Airflow and wait until it is healthy and has read the DAGs.

    Returns the service, and whether it was already running.

    `announce` is called with a sentence whenever the phase changes. Raises SystemFailure with the end of the
    log if Airflow is not ready within `timeout_s`, and stops what it started; an Airflow that was already
    running is left running.
    """
    with _lock(announce):
        before = running()
        if before is None:
            service = _start_ready(announce, port, timeout_s)
        else:
            service = before
            announce("Airflow is running already; looking at its health")
            try:
                _wait_until_ready(service, announce, timeout_s, starts_before=starts_of_components())
            except _PortTaken:
                raise SystemFailure(
                    f"another program listens on port {service.port} since Airflow's api-server died: end it,"
                    " or move Airflow to another port by 'steptime down' and 'steptime up'"
                ) from None
        return service, before is not None


def kept_settings() -> list[str]:
    """Return the variables of which the running Airflow has another value than this process."""
    service = recorded()
    process = None if service is None else supervisor_process(service)
    if process is None:
        return []
    theirs = process.environ()
    return [name for name in _READ_AT_START if theirs.get(name) != os.environ.get(name)]


def down(announce: Announce) -> bool:
    """Stop Airflow and every process that it started, and verify that none is left.

    Returns whether there was something to stop.

    Training jobs continue, and the next `up` finds them again. Raises SystemFailure if a process survives
    SIGKILL.
    """
    if not settings.airflow_home().exists():
        return False
    with _lock(announce):
        service = recorded()
        if service is None:
            return False
        was_running = bool(session(service))
        end_session(service, announce)
        return was_running


def status() -> AirflowStatus:
    """Return whether Airflow is running, the health of its components, its DAGs and running DAG runs."""
    service = running()
    if service is None:
        return AirflowStatus(running=False, healthy=False, problem=why_not_running())
    restarts = {name: starts - 1 for name, starts in starts_of_components().items()}
    common: dict[str, Any] = {"running": True, "url": service.url, "restarts": restarts}
    try:
        with service.client() as client:
            health = client.health()
            return AirflowStatus(
                **common,
                healthy=health.all_healthy,
                health=health.components,
                dags=tuple(dag.dag_id for dag in client.dags()),
                import_errors=client.import_errors(),
                running_dag_runs=tuple(f"{run.dag_id}/{run.dag_run_id}" for run in client.running_dag_runs()),
            )
    except SystemFailure as failure:
        return AirflowStatus(**common, healthy=False, problem=str(failure))


def _lock(announce: Announce) -> AbstractContextManager[None]:
    """Allow one `up` or `down` at a time; a second one waits for as long as a start may take."""
    lock_file = settings.airflow_home() / "service.lock"
    return one_at_a_time(lock_file, "Airflow", announce, START_TIMEOUT_S + STOP_TIMEOUT_S)


def _free_port(wanted: int | None, before: Service | None, announce: Announce) -> int:
    """Return the first free port from `wanted` on; without it, from the last port used or the default on.

    Raises SystemFailure if 50 ports in a row are busy.
    """
    first = wanted or (before.port if before else DEFAULT_PORT)
    ports = range(first, min(first + _PORTS_TRIED, 65536))
    for port in ports:
        if not is_free(port):
            continue
        if port != first:
            announce(f"port {first} is busy; taking {port}")
        return port
    raise SystemFailure(f"no port from {first} to {ports[-1]} is free: name another with --port")


def _listens(service: Service) -> bool:
    """Return whether a process of this service listens on its port."""
    for member in session(service):
        with suppress(psutil.Error):
            for connection in member.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == service.port:
                    return True
    return False


def _start_ready(announce: Announce, port: int | None, timeout_s: float) -> Service:
    """Start Airflow on a free port and wait until it is ready. Stop everything if that fails."""
    leftover = recorded()
    if leftover is not None:
        end_session(leftover, announce)
    while True:
        free = _free_port(port, leftover, announce)
        announce(f"starting Airflow on port {free}")
        service = _start(free)
        try:
            _wait_until_ready(service, announce, timeout_s)
        except _PortTaken:
            announce(f"another program has taken port {service.port} meanwhile; starting again")
            end_session(service, announce)
        except BaseException:
            announce("stopping what was started")
            end_session(service, announce)
            raise
        else:
            return service


def _start(port: int) -> Service:
    """Start the supervisor in a new session, so that it survives the terminal, and record it."""
    write_config(port)
    supervisor.state_file().unlink(missing_ok=True)
    logs = log_file("supervisor").parent
    logs.mkdir(parents=True, exist_ok=True)
    for log in logs.glob("*.log"):
        log.replace(log.with_suffix(".log.1"))
    new_file = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    started_at = time.time()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", "steptime.service.supervisor"],
        child_environment(),
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_file("supervisor")), new_file, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    service = Service(
        pid=pid, start_tick=start_tick(pid), boot_id=boot_id(), started_at=started_at, port=port
    )
    write_whole(service_file(), service.model_dump_json(indent=2))
    return service


def _wait_until_ready(
    service: Service, announce: Announce, timeout_s: float, starts_before: Mapping[str, int] | None = None
) -> None:
    """Wait until every component is healthy and Airflow has read a DAG.

    `starts_before` has the number of starts of each component of an Airflow that was already running. They do
    not count as failures of this start. Raises _PortTaken if another program has the port, and SystemFailure
    for other failures.
    """
    reported = ""
    with service.client() as client:

        def is_ready() -> bool:
            nonlocal reported
            waiting_for = _missing(service, client, starts_before or {})
            if waiting_for is not None and waiting_for != reported:
                announce(waiting_for)
                reported = waiting_for
            return waiting_for is None

        if not poll_until(is_ready, every_s=_POLL_S, timeout_s=timeout_s):
            raise _failed_start(f"it is not ready after {timeout_s:.0f} s: {reported}", "api-server")


def _missing(service: Service, client: AirflowClient, starts_before: Mapping[str, int]) -> str | None:
    """Return what a starting Airflow waits for, for people; None if it is ready.

    Raises the errors of `_wait_until_ready`.
    """
    if supervisor_process(service) is None:
        raise _failed_start("the supervisor ended", "database", "supervisor")
    state = supervisor_state()
    if state is None or state.preparing_database:
        return "preparing the database"
    for component in state.components:
        if component.starts - starts_before.get(component.name, 0) > _STARTS_ALLOWED:
            raise _failed_start(
                f"the {component.name} ended repeatedly with exit code {component.last_exit_code}",
                component.name,
            )
    if not _listens(service):
        # Another program may have taken the port while the database was prepared.
        if not is_free(service.port):
            time.sleep(_POLL_S)  # our own api-server may have bound it between the two checks
            if not _listens(service):
                raise _PortTaken
        return "waiting for the api-server"
    try:
        health = client.health()
    except SystemFailure:
        return "waiting for the api-server"
    # A heartbeat from before this start does not count.
    ill = [name for name in health.components if not health.is_healthy(name, since=service.started_at)]
    if ill:
        return f"waiting for the {', '.join(name.replace('_', '-') for name in ill)}"
    return _missing_dags(client, since=service.started_at)


def _missing_dags(client: AirflowClient, *, since: float) -> str | None:
    """Return that Airflow waits for the DAGs, and which files it could not read; None once it has a DAG.

    Errors from before `since` (Unix time) do not count: the file may have been corrected. Raises
    SystemFailure if Airflow could read no file that makes DAGs.
    """
    try:
        if client.dags():
            return None
        errors = {Path(name).name: error for name, error in client.import_errors(since=since).items()}
    except SystemFailure:
        return "waiting for the DAGs"  # the first answers may be errors while the database is busy
    unread = "; ".join(f"{name}: {error}" for name, error in sorted(errors.items()))
    files = {path.name for path in settings.dags_dir().glob("*.py")} - {_CONFIG_FILES_REPORT}
    if errors and errors.keys() >= files:
        raise SystemFailure(f"Airflow cannot read the DAG files of {settings.dags_dir()}: {unread}")
    return f"waiting for the DAGs; files that cannot be read: {unread}" if unread else "waiting for the DAGs"


def _failed_start(what: str, *logs: str) -> SystemFailure:
    """Return the error of a start, with the end of the first of `logs` that is not empty."""
    paths = [log_file(name) for name in logs]
    log = next((path for path in paths if path.is_file() and path.stat().st_size), paths[0])
    return failed_start("Airflow", what, log, lines=20)
