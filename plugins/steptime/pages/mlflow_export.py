"""Copy results to an MLflow tracking server, through MLflow's client: the extra `steptime[mlflow]`."""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from steptime.errors import SystemFailure, UserError
from steptime.judging.run_findings import RUN_VERDICT_COLUMNS
from steptime.recipes.environment import hide_passwords
from steptime.store.columns import COLUMNS, Column

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

JOB = "steptime.job_name"
"""The tag by which a run is found again in MLflow."""
_LONGEST = 5000
"""Most characters of a value; MLflow allows 6,000 in a parameter."""
_PAGE = 1000
_COLUMNS = (*COLUMNS, *RUN_VERDICT_COLUMNS)


def export_results(
    rows: Iterable[Mapping[str, Any]],
    experiment: str,
    tracking_uri: str | None,
    report: Callable[[str], None],
) -> int:
    """Write each result as a run of an MLflow experiment; return the number of runs that were new.

    Planned values become parameters, measured numbers metrics, and all others tags. For results that were
    exported before, only the tags, such as the verdict, are updated.

    Args:
        rows: results, with their verdicts.
        experiment: name of the experiment; it is created if it does not exist.
        tracking_uri: None for MLflow's own `MLFLOW_TRACKING_URI`.
        report: gets a line about each new run.

    Raises:
        UserError: MLflow is not installed.
        SystemFailure: the server does not answer, or refuses.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError:
        raise UserError("MLflow's client is not installed here: pip install 'steptime[mlflow]'.") from None
    try:
        client = MlflowClient(tracking_uri)
        known = client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known else client.create_experiment(experiment)
        written = {run.data.tags[JOB]: run for run in _runs(client, experiment_id) if JOB in run.data.tags}
        return sum(_write(client, experiment_id, row, written.get(row["job_name"]), report) for row in rows)
    except (MlflowException, OSError) as error:
        where = tracking_uri or "the tracking server of MLFLOW_TRACKING_URI"
        sentence = f"the results were not exported to {where}: {error}"
        raise SystemFailure(hide_passwords(sentence)) from error


def _runs(client: "MlflowClient", experiment_id: str) -> "Iterable[Run]":
    token: str | None = None
    while True:
        page = client.search_runs([experiment_id], max_results=_PAGE, page_token=token)
        yield from page
        if not (token := page.token):
            return


def _write(
    client: "MlflowClient",
    experiment_id: str,
    row: Mapping[str, Any],
    written: "Run | None",
    report: Callable[[str], None],
) -> bool:
    """Write a result as an MLflow run; return whether it is new.

    If an earlier export has completed the run (`written`), only its tags are updated.
    """
    from mlflow.entities import Metric, Param, RunTag

    name, ended_ms = row["job_name"], _milliseconds(row["ended_at"] or row["submitted_at"])
    texts = _texts(row)
    tags = [RunTag(f"steptime.{column.name}", text) for column, text in texts if not column.of_run]
    if written is not None and written.info.status == "FINISHED":
        client.log_batch(written.info.run_id, tags=tags)
        return False
    run = written or client.create_run(
        experiment_id, _milliseconds(row["started_at"] or row["submitted_at"]), {JOB: name}, name
    )
    parameters = [Param(column.name, text) for column, text in texts if column.of_run]
    metrics = [
        Metric(column.name, float(value), ended_ms, 0)
        for column in _COLUMNS
        if _is_measured(column) and (value := row.get(column.name)) is not None and math.isfinite(value)
    ]
    client.log_batch(run.info.run_id, metrics=metrics, params=parameters, tags=tags)
    client.set_terminated(run.info.run_id, "FINISHED", ended_ms)
    report(f"exported {name}")
    return True


def _is_measured(column: Column) -> bool:
    return column.kind in ("number", "integer") and column.of_run is None


def _texts(row: Mapping[str, Any]) -> list[tuple[Column, str]]:
    """Return the columns that are not metrics, with their values as texts; empty ones are left out."""
    shown = [(column, row.get(column.name)) for column in _COLUMNS if not _is_measured(column)]
    return [(column, _text(column, value)) for column, value in shown if value not in (None, "")]


def _text(column: Column, value: Any) -> str:
    if column.kind == "time":
        return datetime.fromtimestamp(value).astimezone().isoformat(timespec="seconds")
    return str(value)[:_LONGEST]


def _milliseconds(unix_time: float) -> int:
    return int(1000 * unix_time)
