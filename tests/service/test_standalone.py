"""Starting and stopping with real processes; `fake_airflow` replaces Airflow to make that quick."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from free_ports import free_port

from steptime import settings
from steptime.errors import SystemFailure
from steptime.process_identity import boot_id, start_tick
from steptime.service import processes, standalone, supervisor
from steptime.service.processes import Service, running
from steptime.service.standalone import down, status, up

pytestmark = pytest.mark.service

FAKE = Path(__file__).parent / "fake_airflow"


def wait_until(condition, what, within_s=90):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {within_s} s"
        time.sleep(0.02)


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pid_of(component):
    return int((settings.airflow_home() / f"{component}.pid").read_text())


def pids():
    return [pid_of(name) for name in (*supervisor.COMPONENTS, "task", "worker")]


def quiet(_phase):
    pass


def kill_supervisor(service):
    os.kill(service.pid, signal.SIGKILL)
    wait_until(lambda: running() is None, "the supervisor is gone")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Yield an empty state folder with the quick Airflow, of which no process may live after the test."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setattr(settings, "shipped", lambda folder: tmp_path / folder)
    airflow = tmp_path / "airflow"
    airflow.mkdir()
    yield airflow
    down(quiet)


def test_up_starts_everything_and_down_leaves_nothing(home):
    phases = []
    (home / "hold-db").touch()

    def report(phase):
        phases.append(phase)
        if phase == "preparing the database":
            (home / "hold-db").unlink()

    service, ran_already = up(report, port=free_port())
    assert not ran_already
    assert phases[:2] == [f"starting Airflow on port {service.port}", "preparing the database"]
    started = [service.pid, *pids()]
    assert all(alive(pid) for pid in started)
    assert {os.getsid(pid) for pid in started} == {service.pid}, "one session"

    again, ran_already = up(quiet)
    assert (again, ran_already) == (service, True)

    now = status()
    assert now.healthy
    assert now.url == service.url
    assert now.dags == ("own",)
    assert now.running_dag_runs == ("own/r1",)
    assert now.restarts == dict.fromkeys(supervisor.COMPONENTS, 0)

    requested_at = time.monotonic()
    assert down(quiet) is True
    assert time.monotonic() - requested_at < supervisor.STOP_GRACE_S, "it waited for a task or an idle worker"
    assert not any(alive(pid) for pid in started)
    assert running() is None
    assert not status().running
    assert down(quiet) is False


def test_secrets_are_the_owners_alone_and_stay_the_same(home):
    up(quiet, port=free_port())
    secrets = [home / name for name in ("airflow.cfg", "keys.json", "passwords.json")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in secrets] == [0o600] * 3
    before = [path.read_text() for path in secrets[1:]]
    down(quiet)
    up(quiet, port=free_port())
    assert [path.read_text() for path in secrets[1:]] == before
    commands = [" ".join(psutil.Process(pid).cmdline()) for pid in pids()]
    for secret in (*json.loads(before[0]).values(), *json.loads(before[1]).values()):
        assert not any(secret in command for command in commands)


def test_a_port_that_another_program_takes_during_the_start_is_passed_over(home, monkeypatch):
    taken = []
    start = standalone._start

    def start_late(port):
        if not taken:
            taken.append(socket.create_server(("127.0.0.1", port)))
        return start(port)

    monkeypatch.setattr(standalone, "_start", start_late)
    phases = []
    port = free_port()
    service, _ = up(phases.append, port=port)
    taken[0].close()
    assert service.port > port
    assert f"another program has taken port {port} meanwhile; starting again" in phases
    assert status().healthy


def test_a_component_that_dies_is_restarted(home):
    up(quiet, port=free_port())
    dead, its_task, its_worker = pid_of("scheduler"), pid_of("task"), pid_of("worker")
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: pid_of("scheduler") != dead and alive(pid_of("scheduler")), "a new scheduler")
    wait_until(lambda: status().restarts["scheduler"] == 1, "the restart is reported")
    assert not alive(its_worker), "an idle worker of the dead scheduler would wait forever"
    assert alive(its_task), "a running task may finish"
    down(quiet)
    assert not alive(its_task), "what the dead scheduler had started"


def test_what_a_killed_supervisor_leaves_is_found(home):
    service, _ = up(quiet, port=free_port())
    orphans = pids()
    kill_supervisor(service)
    assert all(alive(pid) for pid in orphans)

    phases = []
    second, ran_already = up(phases.append)
    assert not ran_already
    assert second.port == service.port, "the port of before, freed"
    assert not any(alive(pid) for pid in orphans)
    assert phases[:3] == [
        "the supervisor of Airflow was killed, and left 6 processes; ending them",
        "killing 2 processes that did not end",  # the task and the idle worker, which get no SIGTERM
        f"starting Airflow on port {service.port}",
    ]

    orphans = pids()
    kill_supervisor(second)
    assert down(quiet) is True
    assert not any(alive(pid) for pid in orphans)


def test_components_end_before_the_api_server_that_they_call(home):
    """They get SIGTERM first, as a component that ends by itself reports that to the database."""
    (home / "tell-ends").touch()
    up(quiet, port=free_port())
    down(quiet)
    *first, last = (home / "ends").read_text().split()
    assert sorted(first) == ["dag-processor", "scheduler", "triggerer"]
    assert last == "api-server"


def test_the_status_of_an_airflow_that_does_not_answer_says_so(home):
    service, _ = up(quiet, port=free_port())
    os.kill(service.pid, signal.SIGSTOP)  # so that it does not restart the api-server
    try:
        psutil.Process(pid_of("api-server")).kill()
        wait_until(lambda: not alive(pid_of("api-server")), "the api-server is gone")
        now = status()
    finally:
        os.kill(service.pid, signal.SIGCONT)
    assert (now.running, now.healthy, now.url) == (True, False, service.url)
    assert f"no Airflow answers at {service.url}" in (now.problem or "")


def test_a_supervisor_that_is_told_to_end_ends_everything_and_exits_with_0(home):
    """systemd ends it like this, without `steptime down`."""
    service, _ = up(quiet, port=free_port())
    started = pids()
    supervising = psutil.Process(service.pid)
    supervising.terminate()
    assert supervising.wait(90) == 0
    wait_until(lambda: not any(alive(pid) for pid in started), "tasks and workers, too, are gone")


def test_what_is_forked_while_a_killed_supervisors_processes_are_ended_is_ended_too(home, monkeypatch):
    (home / "deaf-scheduler").touch()
    service, _ = up(quiet, port=free_port())
    kill_supervisor(service)
    look, kill = supervisor.session_members, processes._kill

    def kill_late(members):
        """Let the scheduler fork after it was looked for, and before it is killed."""
        if pid_of("late") == 0:
            os.kill(pid_of("scheduler"), signal.SIGUSR1)
            wait_until(lambda: pid_of("late"), "another process")
            assert pid_of("late") in {member.pid for member in look(service.pid)}
            assert pid_of("late") not in {member.pid for member in members}
        return kill(members)

    monkeypatch.setattr(processes, "_kill", kill_late)
    monkeypatch.setattr(supervisor, "STOP_GRACE_S", 0.5)
    assert down(quiet) is True
    assert pid_of("late")
    assert not alive(pid_of("late"))


def test_a_start_that_fails_shows_the_log_and_stops_everything(home):
    (home / "break-triggerer").touch()
    with pytest.raises(SystemFailure, match="triggerer ended repeatedly with exit code 1") as failure:
        up(quiet, port=free_port())
    assert "triggerer is broken on purpose" in str(failure.value)
    assert running() is None
    assert not any(alive(int(told.read_text())) for told in home.glob("*.pid"))


def test_a_dag_file_that_cannot_be_read_ends_the_start_until_it_is_corrected(home):
    """The other file of the shipped folder makes no DAG, so it is of no help that Airflow can read it."""
    (home / "broken-dag").touch()
    settings.dags_dir().mkdir()
    for name in ("steptime_dags.py", "steptime_config_files.py"):
        (settings.dags_dir() / name).touch()
    with pytest.raises(
        SystemFailure, match=r"cannot read the DAG files of .*: steptime_dags.py: SyntaxError: bad"
    ):
        up(quiet, port=free_port())
    assert running() is None

    (home / "broken-dag").write_text("corrected, but Airflow has yet to read it")
    phases = []

    def read_it_after_a_while(phase):
        phases.append(phase)
        if phase == "waiting for the DAGs":
            (home / "broken-dag").unlink()

    up(read_it_after_a_while, port=free_port())
    assert phases[-1] == "waiting for the DAGs"


def test_of_two_at_once_the_second_waits_and_finds_it_running(home):
    outcomes = []
    phases = []
    port = free_port()
    threads = [
        threading.Thread(target=lambda: outcomes.append(up(phases.append, port=port))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran_already for _, ran_already in outcomes) == [False, True]
    assert outcomes[0][0] == outcomes[1][0]
    assert "another steptime command is starting or stopping Airflow; waiting for it" in phases


def record(**changes):
    """Write a state file that describes this process as the service; return its content."""
    fields = {
        "pid": os.getpid(),
        "start_tick": start_tick(os.getpid()),
        "boot_id": boot_id(),
        "started_at": time.time(),
        "port": 1,
    }
    service = Service.model_validate(fields | changes)
    (settings.airflow_home() / "service.json").write_text(service.model_dump_json())
    return service


@pytest.mark.parametrize(
    "changes",
    [{"start_tick": 1}, {"boot_id": "of another boot"}],
    ids=["process id given to another process", "machine booted since"],
)
def test_a_stale_state_file_is_nobody(home, changes):
    record(**changes)
    assert running() is None
    assert down(quiet) is False, "and this process, which bears the id, lives on"
    assert not (home / "service.json").exists()


def test_another_session_with_the_same_id_is_left_alone(home):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        itself = record(pid=stranger.pid, start_tick=start_tick(stranger.pid))
        assert [member.pid for member in processes.session(itself)] == [stranger.pid]
        another = record(pid=stranger.pid, start_tick=start_tick(stranger.pid), boot_id="of another boot")
        assert processes.session(another) == []
        assert down(quiet) is False
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_what_an_airflow_keeps_of_the_shell_that_started_it_is_known(home, monkeypatch):
    assert standalone.kept_settings() == [], "nothing runs"
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", "/team/config")
    monkeypatch.delenv("STEPTIME_STORE_URL", raising=False)
    program = "import time; print(flush=True); time.sleep(60)"
    airflow = subprocess.Popen(
        [sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE
    )
    try:
        assert airflow.stdout is not None
        airflow.stdout.readline()  # by now it has its own environment
        record(pid=airflow.pid, start_tick=start_tick(airflow.pid))
        assert standalone.kept_settings() == []
        monkeypatch.setenv("STEPTIME_STORE_URL", "sqlite:////elsewhere.db")
        assert standalone.kept_settings() == ["STEPTIME_STORE_URL"]
        monkeypatch.delenv("STEPTIME_CONFIG_DIR")
        assert standalone.kept_settings() == ["STEPTIME_CONFIG_DIR", "STEPTIME_STORE_URL"]
    finally:
        airflow.kill()
        airflow.communicate()


def test_a_supervisor_of_which_nobody_takes_leave_is_not_waited_for(home):
    """In a container without an init process an ended supervisor stays a zombie."""
    sleep = "import time; time.sleep(600)"
    start = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", f"{start}; print(child.pid, flush=True); {sleep}", sleep],
        stdout=subprocess.PIPE,
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        record(pid=pid, start_tick=start_tick(pid))
        begin = time.monotonic()

        assert down(quiet) is True

        assert time.monotonic() - begin < processes.STOP_TIMEOUT_S / 2
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert running() is None
    finally:
        parent.kill()
        parent.communicate()


def test_a_damaged_state_file_is_not_guessed_at(home):
    (home / "service.json").write_text('{"pid": 1')
    with pytest.raises(SystemFailure, match=r"service.json is damaged"):
        status()
    (home / "service.json").unlink()
