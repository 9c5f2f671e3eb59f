"""Find and end the processes of this machine's Airflow.

They are a supervisor (`steptime.service.supervisor`) and Airflow's components in its session. The state file
identifies the supervisor by process id, start time and boot id, so that after a reboot, or when the id is
reused, no other process is mistaken for it.
"""

from contextlib import suppress
from pathlib import Path

import psutil

from steptime import settings
from steptime.errors import SystemFailure
from steptime.frozen import Frozen
from steptime.local_services import Announce, read_state
from steptime.process_identity import boot_id, start_tick
from steptime.service import supervisor
from steptime.service.rest import AirflowClient
from steptime.service.standalone_config import ADMIN, password
from steptime.waiting import poll_until

STOP_TIMEOUT_S = supervisor.STOP_GRACE_S + 15
_KILL_TIMEOUT_S = 10.0
_POLL_S = 0.02


class Service(Frozen):
    """The Airflow that `steptime up` started, as its state file describes it."""

    pid: int
    """Process id of the supervisor, and the session id of all of Airflow's processes."""
    start_tick: int
    """When the supervisor was started, in clock ticks since boot: see `steptime.process_identity`."""
    boot_id: str
    started_at: float
    """When the supervisor was started, in Unix time."""
    port: int

    @property
    def url(self) -> str:
        """The address of the UI and of the REST API."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> AirflowClient:
        """Return a REST client for the admin."""
        return AirflowClient(self.url, ADMIN, password())


def running() -> Service | None:
    """Return the Airflow of this state folder; None if its supervisor is not running."""
    service = recorded()
    return service if service is not None and supervisor_process(service) is not None else None


def why_not_running() -> str:
    """Explain that Airflow is not running, what a killed supervisor left behind, and the remedy."""
    service = recorded()
    left = session(service) if service is not None else []
    if not left:
        return "Airflow is not running: start it with 'steptime up'"
    return (
        f"{_left_behind(left)}, which are not restarted when they die:"
        " 'steptime up' ends them and starts Airflow again, 'steptime down' ends them"
    )


def service_file() -> Path:
    """Return the path of the state file, which describes the supervisor that was started last."""
    return settings.airflow_home() / "service.json"


def recorded() -> Service | None:
    """Return the Airflow that was last started, running or not; None after `steptime down`.

    Raises SystemFailure if the state file is damaged.
    """
    return read_state(Service, service_file(), if_damaged="end Airflow's processes by hand, then delete it")


def end_session(service: Service, announce: Announce) -> None:
    """End all processes of a service and delete its state file.

    The supervisor gets SIGTERM, or its components if it was killed; whatever is left gets SIGKILL. Raises
    SystemFailure if a process survives that.
    """
    process = supervisor_process(service)
    if process is not None:
        announce("stopping Airflow")
        with suppress(psutil.NoSuchProcess):
            process.terminate()
        poll_until(lambda: supervisor_process(service) is None, every_s=_POLL_S, timeout_s=STOP_TIMEOUT_S)
    elif left := session(service):
        announce(f"{_left_behind(left)}; ending them")
        _end_components(service)
    if left := session(service):
        announce(f"killing {_counted(left)} that did not end")
        # Repeatedly, because a process may start another one before it is killed.
        poll_until(lambda: not _kill(session(service)), every_s=_POLL_S, timeout_s=_KILL_TIMEOUT_S)
        left = session(service)
    if left:
        pids = ", ".join(str(member.pid) for member in left)
        raise SystemFailure(
            f"these processes of Airflow run on after SIGKILL: {pids}. End them, then run the command again."
        )
    service_file().unlink(missing_ok=True)


def _end_components(service: Service) -> None:
    """End the components of a supervisor that was killed and cannot do it itself."""
    try:
        state = supervisor_state()
    except SystemFailure:  # a damaged file: all processes are killed
        return
    components = state.components if state else ()
    supervisor.end_components(
        service.pid, {component.pid: component.name for component in components if component.pid}
    )


def _kill(members: list[psutil.Process]) -> list[psutil.Process]:
    for member in members:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    return members


def _left_behind(left: list[psutil.Process]) -> str:
    return f"the supervisor of Airflow was killed, and left {_counted(left)}"


def _counted(processes: list[psutil.Process]) -> str:
    return "1 process" if len(processes) == 1 else f"{len(processes)} processes"


def session(service: Service) -> list[psutil.Process]:
    """Return the processes of a service, whether its supervisor is running or not.

    They are the members of the session whose id is the supervisor's process id: the kernel does not reuse the
    id while the session has members. Empty after a reboot, or if the id now belongs to another process.
    """
    try:
        another = start_tick(service.pid) != service.start_tick
    except ProcessLookupError:
        another = False  # the supervisor has ended, but its children may be running
    return [] if another or service.boot_id != boot_id() else supervisor.session_members(service.pid)


def supervisor_process(service: Service) -> psutil.Process | None:
    """Return the supervisor's process if it is running; None for a zombie or another process with its id."""
    try:
        process = psutil.Process(service.pid)
        same = service.boot_id == boot_id() and start_tick(service.pid) == service.start_tick
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None


def supervisor_state() -> supervisor.SupervisorState | None:
    """Return the state that Airflow's supervisor has written to its file; None if there is none yet."""
    return read_state(
        supervisor.SupervisorState, supervisor.state_file(), if_damaged="stop Airflow by 'steptime down'"
    )


def starts_of_components() -> dict[str, int]:
    """Return how often the supervisor has started each of Airflow's components, by name."""
    state = supervisor_state()
    return {component.name: component.starts for component in state.components} if state else {}
