"""When a component of Airflow is started, and started again."""

import pytest

from steptime.service import component
from steptime.service.component import Component, ComponentState


def test_a_component_that_cannot_be_forked_again_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Died:
        pid, exitcode = 2**30, -9

    forks = [Died(), BlockingIOError("no more processes"), Died()]

    def fork(_name: str, _arguments: tuple[str, ...]) -> object:
        if isinstance(forked := forks.pop(0), OSError):
            raise forked
        return forked

    monkeypatch.setattr(component, "fork_airflow", fork)
    scheduler = Component("scheduler", ("scheduler",))
    looks = [(0.0, True), (0.5, True), (1.0, False), (1.5, True), (3.0, False), (3.5, True)]
    assert [(now, scheduler.keep(now)) for now, _ in looks] == looks
    assert scheduler.state() == ComponentState(name="scheduler", pid=2**30, starts=2, last_exit_code=-9)


def test_a_first_start_that_fails_is_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork(_name: str, _arguments: tuple[str, ...]) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(component, "fork_airflow", fork)
    with pytest.raises(BlockingIOError):
        Component("scheduler", ("scheduler",)).keep(0.0)
