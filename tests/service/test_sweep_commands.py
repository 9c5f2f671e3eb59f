"""`steptime sweep run` and `cancel`, against an Airflow's REST API that keeps DAG runs as Airflow does."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime.cli import main
from steptime.service import sweep_cancelling

_DAGS = {"sweep": "scaling_sweep", "cell": "llama31"}


class SweepUnderWay:
    """A sweep of one cell; marking a DAG run as failed ends it."""

    def __init__(self, api: Any, *, sweep: str, cell: str) -> None:
        self.states = {"sweep": sweep, "cell": cell}
        self.marked: list[str] = []
        self.is_started_late = False
        runs = "/api/v2/dags/scaling_sweep/dagRuns"
        task = {"task_id": "cell.run", "map_index": 0, "state": "deferred", "try_number": 1}
        dags = [{"dag_id": "scaling_sweep", "is_paused": False}]
        api.answers |= {
            "GET /api/v2/dags": (200, {"dags": dags, "total_entries": 1}),
            f"GET {runs}/sweep": self._get("sweep"),
            f"PATCH {runs}/sweep": self._patch("sweep"),
            f"GET {runs}/sweep/taskInstances": (200, {"task_instances": [task], "total_entries": 1}),
            f"GET {runs}/sweep/taskInstances/cell.run/xcomEntries/started_run": lambda _: self._started(),
            "GET /api/v2/dags/llama31/dagRuns/cell": self._get("cell"),
            "PATCH /api/v2/dags/llama31/dagRuns/cell": self._patch("cell"),
        }

    def _get(self, run: str) -> Callable[[Any], Any]:
        return lambda _: (200, {"dag_id": _DAGS[run], "dag_run_id": run, "state": self.states[run]})

    def _patch(self, run: str) -> Callable[[Any], Any]:
        def patch(body: Any) -> Any:
            assert body == {"state": "failed"}
            self.marked.append(run)
            self.states[run] = "failed"
            return self._get(run)(None)

        return patch

    def _started(self) -> Any:
        if self.is_started_late and not self.marked:
            return 404, {"detail": "no such XCom"}
        return 200, {"key": "started_run", "value": {"dag_id": "llama31", "run_id": "cell"}}


@pytest.fixture
def steptime(api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int | str | None]:
    """The command line, with the fake Airflow as the one that it is told of."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.setenv("STEPTIME_AIRFLOW_URL", api.url)
    monkeypatch.setenv("STEPTIME_AIRFLOW_USER", "ada")
    monkeypatch.setenv("STEPTIME_AIRFLOW_PASSWORD", "secret")
    monkeypatch.setattr(sweep_cancelling, "_POLL_S", 0.01)

    def run(arguments: str) -> int | str | None:
        monkeypatch.setattr(sys, "argv", ["steptime", *arguments.split()])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code

    return run


@pytest.mark.parametrize(
    ("states", "marked"),
    [
        ({"sweep": "running", "cell": "running"}, ["sweep", "cell"]),
        ({"sweep": "running", "cell": "success"}, ["sweep"]),
        ({"sweep": "failed", "cell": "queued"}, ["cell"]),
        ({"sweep": "failed", "cell": "failed"}, []),
    ],
)
def test_cancelling_ends_the_sweep_first_and_then_what_it_has_started(
    api: Any,
    steptime: Callable[[str], int | str | None],
    capsys: pytest.CaptureFixture[str],
    states: dict[str, str],
    marked: list[str],
) -> None:
    sweep = SweepUnderWay(api, **states)
    assert steptime("sweep cancel sweep --dry-run") == 0
    assert sweep.marked == []
    would = capsys.readouterr().out
    assert steptime("sweep cancel sweep") == 0
    told = capsys.readouterr().out
    assert sweep.marked == marked
    if marked:
        assert would.splitlines() == [
            f"would end {run} of {_DAGS[run]}, which is {states[run]}" for run in marked
        ]
        assert told.splitlines() == [f"ended {run} of {_DAGS[run]}" for run in marked]
    else:
        assert would == told == "nothing of sweep runs: it is failed\n"


def test_a_run_that_a_cell_was_just_starting_is_ended_too(
    api: Any, steptime: Callable[[str], int | str | None]
) -> None:
    sweep = SweepUnderWay(api, sweep="running", cell="running")
    sweep.is_started_late = True
    assert steptime("sweep cancel sweep") == 0
    assert sweep.marked == ["sweep", "cell"]


def test_what_does_not_end_is_named(
    api: Any,
    steptime: Callable[[str], int | str | None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    SweepUnderWay(api, sweep="failed", cell="running")
    api.answers["PATCH /api/v2/dags/llama31/dagRuns/cell"] = (
        200,
        {"dag_id": "llama31", "dag_run_id": "cell", "state": "running"},
    )
    monkeypatch.setattr(sweep_cancelling, "_ENDED_WITHIN_S", 0)
    assert steptime("sweep cancel sweep") == 2
    assert "cell have not ended: see http://127.0.0.1" in capsys.readouterr().err


def test_an_unknown_sweep_is_the_users_mistake(
    api: Any, steptime: Callable[[str], int | str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    SweepUnderWay(api, sweep="running", cell="running")
    assert steptime("sweep cancel sweeep") == 1
    assert "has no sweep with the run id 'sweeep'" in capsys.readouterr().err
