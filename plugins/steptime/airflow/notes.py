"""The note of a DAG run: what runs, and at its end what came of it, so that the list of runs can be read.

A task cannot write it: the API of tasks has no way to change the note of a DAG run, and Airflow's REST API
would need a login on each worker. So the scheduler writes it, when it calls the listeners of DAG runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl as listens

from steptime.airflow.rows import session_of, xcom_of
from steptime.errors import shown
from steptime.web.dag_runs import first_failure

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

SENTENCE_KEY = "sentence"
"""XCom of the task that reports: what came of the DAG run, in one sentence."""
REPORT_TASK = "report"

_OURS = "steptime: "
"""Begins the line of a note that is written here; all others are people's and stay."""
_LONGEST = 1000
"""Airflow's limit of a note."""
_ASKED = ("sweep", "size", "dtype", "gpus", "gpu_type", "cluster")


@listens
def on_dag_run_running(dag_run: "DagRun", msg: str) -> None:  # noqa: ARG001
    """Note what was asked for."""
    if _is_ours(dag_run):
        asked = {**_defaults(dag_run), **(dag_run.conf or {})}
        named = ", ".join(f"{name} {asked[name]}" for name in _ASKED if asked.get(name) is not None)
        with _attached(dag_run) as run:
            _note(run, f"running {named}")


@listens
def on_dag_run_success(dag_run: "DagRun", msg: str) -> None:  # noqa: ARG001
    """Note what came of it."""
    if _is_ours(dag_run):
        with _attached(dag_run) as run:
            _note(run, _reported(run) or "done")


@listens
def on_dag_run_failed(dag_run: "DagRun", msg: str) -> None:  # noqa: ARG001
    """Note what came of it, and the first task that failed with its reason."""
    if not _is_ours(dag_run):
        return
    with _attached(dag_run) as run:
        failure = first_failure(run.dag_id, run.run_id, session_of(run))
        _note(run, "; ".join(filter(None, (_reported(run), failure))) or "failed")


def _is_ours(dag_run: "DagRun") -> bool:
    """Whether it is of a DAG with results; if Airflow has not loaded the DAG, nobody knows."""
    tags = getattr(getattr(dag_run, "dag", None), "tags", ())
    return "steptime" in tags and "internal" not in tags


def _defaults(dag_run: "DagRun") -> dict[str, Any]:
    params = getattr(dag_run.dag, "params", {})
    return dict(params.dump()) if hasattr(params, "dump") else {}


@contextmanager
def _attached(dag_run: "DagRun") -> Iterator["DagRun"]:
    """The DAG run in the session that it came from, which the scheduler commits, or in a new session."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is not None:
        with session.no_autoflush:
            yield dag_run
        return
    with create_session() as own:  # as in `airflow dags test`
        found = DagRun.find_duplicate(dag_run.dag_id, dag_run.run_id, session=own)
        yield found or dag_run


def _reported(dag_run: "DagRun") -> str | None:
    sentence: str | None = xcom_of(dag_run, REPORT_TASK, -1, SENTENCE_KEY)
    return sentence


def _note(dag_run: "DagRun", sentence: str) -> None:
    """Put the sentence below what people have noted, in place of what was written here before."""
    theirs = [line for line in (dag_run.note or "").splitlines() if not line.startswith(_OURS)]
    kept = "\n".join(theirs)
    room = _LONGEST - len(kept) - 1
    if room > len(_OURS):
        dag_run.note = f"{kept}\n{shown(_OURS + sentence, at_most=room)}".strip()
