"""Notes of DAG runs, written by the listeners that Airflow's scheduler calls."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from steptime.airflow import notes

# What Airflow's own API server, which runs in the test's process, warns of.
pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore:Using `httpx` with")]


def note_of(dag_run: Any) -> str:
    """As Airflow's database has it."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        [found] = DagRun.find(dag_id=dag_run.dag_id, run_id=dag_run.run_id, session=session)
        return str(found.note)


def test_the_note_of_a_run_has_its_step_times(run_dag: Callable[..., Any]) -> None:
    dag_run = run_dag(gpus="1")

    note = note_of(dag_run)
    assert note.startswith("steptime: all 1 runs have valid results: tiny·fp32·1 0."), note
    assert note.endswith(" s")


def test_the_note_of_a_refused_run_has_the_reason_and_its_log_no_traceback(
    run_dag: Callable[..., Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    dag_run = run_dag(gpus="3")

    reason = "unknown GPU count '3' of llama3.1-25.04 tiny on cpu: did you mean '2'? Valid are: 1, 2, 4."
    assert note_of(dag_run) == f"steptime: check_params failed: {reason}"
    [checked] = dag_run.get_task_instances(state=["failed"])
    assert (checked.task_id, checked.try_number) == ("check_params", 1)
    printed = "".join(capsys.readouterr()) + caplog.text
    assert reason in printed
    assert "Traceback" not in printed


def test_what_people_have_noted_stays() -> None:
    run: Any = SimpleNamespace(note="for Ada\nsteptime: running size 8b\nafter the upgrade")
    notes._note(run, "all 2 runs have valid results")
    assert run.note == "for Ada\nafter the upgrade\nsteptime: all 2 runs have valid results"

    run.note = "x" * 900
    notes._note(run, "y" * 200)
    assert (len(run.note), run.note[-1]) == (1000, "…")
    run.note = full = "x" * 995
    notes._note(run, "y")
    assert run.note == full


def test_other_dags_are_left_alone() -> None:
    for dag in (None, SimpleNamespace(tags={"example"}), SimpleNamespace(tags={"steptime", "internal"})):
        notes.on_dag_run_success(SimpleNamespace(dag=dag), "")  # would ask for its session
