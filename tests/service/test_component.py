"""When a component of Airflow is started and restarted."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from steptime.service import supervisor
from steptime.service.supervisor import Component, ComponentState


class Ended:
    """A process that was killed right after its start. Its id is larger than any real one."""

    pid = 2**30

    def poll(self):
        return -9


@pytest.fixture
def starts(monkeypatch):
    """Return the list of what the next starts return: a process, or an error to raise."""
    outcomes = []

    def start(_name, _arguments):
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    monkeypatch.setattr(supervisor, "start_airflow", start)
    return outcomes


def test_a_restart_that_fails_is_repeated(starts):
    starts += [Ended(), BlockingIOError("no more processes"), Ended()]
    scheduler = Component("scheduler", ("scheduler",))
    looks = [(0.0, True), (0.5, True), (1.0, False), (1.5, True), (3.0, False), (3.5, True)]
    assert [(now, scheduler.keep(now)) for now, _ in looks] == looks
    assert scheduler.state() == ComponentState(name="scheduler", pid=2**30, starts=2, last_exit_code=-9)


def test_a_first_start_that_fails_is_an_error(starts):
    starts.append(BlockingIOError("no more processes"))
    with pytest.raises(BlockingIOError):
        Component("scheduler", ("scheduler",)).keep(0.0)


def test_a_component_that_ran_for_long_is_restarted_at_once(starts):
    starts += [Ended() for _ in range(3)]
    scheduler = Component("scheduler", ("scheduler",))
    for now in (0.0, 0.0, 1.0, 200.0):  # starts, has ended, starts again, and has ended after 199 s
        assert scheduler.keep(now)
    assert scheduler.keep(200.0)
    assert scheduler.starts == 3
    starts.append(Ended())
    looks = [(201.0, True), (202.5, False), (203.0, True)]  # that was the second failure in a row
    assert [(now, scheduler.keep(now)) for now, _ in looks] == looks


def test_the_api_server_has_time_to_end_even_if_the_others_took_all(monkeypatch):
    waited = []

    def nothing_ends(_is_over, *, every_s, timeout_s):
        waited.append(timeout_s)

    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(waited))
    monkeypatch.setattr(supervisor, "time", clock)
    monkeypatch.setattr(supervisor, "poll_until", nothing_ends)
    supervisor.end_components(2**30, {})
    assert waited == [supervisor.STOP_GRACE_S, supervisor.LEAST_GRACE_S]


def test_what_a_dead_component_leaves_is_ended_before_its_restart(starts):
    leaves_a_child = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", leaves_a_child], stdout=subprocess.PIPE, process_group=0
    )
    starts.append(process)
    scheduler = Component("scheduler", ("scheduler",))
    scheduler.keep(0.0)
    assert process.stdout is not None
    with process.stdout:
        child = psutil.Process(int(process.stdout.readline()))
    process.wait()
    assert child.status() in (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING)
    assert scheduler.keep(1.0)
    assert psutil.wait_procs([child], timeout=60)[0] == [child]


def test_pauses_between_restarts_last_a_minute_at_most(starts):
    starts += [Ended() for _ in range(12)]
    scheduler = Component("scheduler", ("scheduler",))
    now = 0.0
    while starts:
        assert scheduler.keep(now), "it starts"
        assert scheduler.keep(now), "it has ended"
        now += supervisor.LONGEST_PAUSE_S
