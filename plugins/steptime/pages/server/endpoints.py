"""The answers of the pages' server as JSON, each restricted to runs that the user may read."""

import json
import re
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Annotated, Any, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import Depends, HTTPException, Query, Request, Response

from steptime.ages import until_when
from steptime.errors import UserError, one_line
from steptime.frozen import Frozen
from steptime.judging import incidents, judgements
from steptime.judging.comparison import compare_since
from steptime.judging.incident_updates import update_incidents
from steptime.judging.run_sets import Measure
from steptime.judging.series import Series
from steptime.pages import answers
from steptime.pages.openmetrics import CONTENT_TYPE, openmetrics
from steptime.pages.plans import describe_plan
from steptime.pages.report_file import html, report_since
from steptime.pages.server.inputs import IncidentId, Note, Since, Text
from steptime.pages.server.permissions import MayEdit, Readable
from steptime.store.columns import BY_NAME, CHOICES, ELEMENTS, SCHEMA_VERSION
from steptime.store.run_queries import Store

HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
MAX_RUNS = 10_000
"""Most runs in one JSON answer, which is built in memory; `get_results_csv` has no limit."""


def get_columns() -> Response:
    """Answer with the heading, unit and format of each column of results, comparisons and trends."""
    return json_response(answers.columns())


def get_comparison(store: Readable, since: Since) -> Response:
    """Answer with the comparison of all series with a run since `since` (Unix time): what got slower."""
    return json_response(answers.comparison(store, compare_since(store, since)))


def get_incidents(store: Readable, may_edit: MayEdit, since: Since) -> Response:
    """Answer with the active incidents and those closed since `since` (Unix time)."""
    return json_response(answers.incidents_since(store, since, may_edit))


def _selection(
    request: Request,
    since: Since | None = None,
    search: Annotated[str, Query(max_length=200)] = "",
) -> answers.SelectedRuns:
    """Read the selection from a query: a DAG run, columns of `CHOICES`, and elements of columns that list."""
    params = request.query_params
    filters: dict[str, Any] = {name: _value(name, params[name]) for name in CHOICES if params.get(name)}
    filters |= {name: params[name] for name in ELEMENTS if params.get(name)}
    filters |= {} if since is None else {"since": since}
    filters |= {"search": search} if search else {}
    dag_id, dag_run_id = params.get("dag_id"), params.get("dag_run_id")
    return answers.SelectedRuns(dag_id, dag_run_id, {"dag_id": dag_id, "dag_run_id": dag_run_id}, filters)


Selected = Annotated[answers.SelectedRuns, Depends(_selection)]


def get_results(
    store: Readable, selection: Selected, limit: Annotated[int, Query(ge=1, le=MAX_RUNS)] = MAX_RUNS
) -> Response:
    """Answer with the newest runs of a selection, at most `limit`: see `pages.answers.select_results`."""
    return json_response(answers.select_results(store, selection, limit))


def get_results_csv(store: Readable, selection: Selected) -> Response:
    """Answer with all runs of a selection, each with its verdict, as a CSV file in the order of the pages."""
    return _csv(answers.select_csv(store, selection), "steptime-results.csv")


def get_scaling(store: Readable, together: Annotated[str | None, Query()] = None) -> Response:
    """Answer with how runs scale over GPU counts, for the sweep or DAG run `together`, else the newest.

    See `pages.answers.scaling`.
    """
    return json_response(answers.scaling(store, together))


def get_series(store: Readable) -> Response:
    """Answer with every judged series and its newest run, worst first."""
    return json_response(answers.series(store))


def get_trend(store: Readable, may_edit: MayEdit, job_name: str, every: bool = False) -> Response:
    """Answer with the series of the run `job_name` over time, oldest run first; 422 if it is not judged.

    Its newest runs, or `every` one.
    """
    row = find_run(store, job_name)
    series = Series.from_row(row)
    if not series.is_judged:
        raise HTTPException(
            status_code=422,
            detail=f"runs in mode {series['mode']} are not judged, so there is no trend to show",
        )
    limit = None if every else answers.TREND_RUNS
    return json_response(answers.series_trend(store, series, may_edit(row["dag_id"]), limit))


def get_run(store: Readable, may_edit: MayEdit, job_name: str) -> Response:
    """Answer with one run: its steps, checkpoints, checks and record."""
    return json_response(answers.run(store, find_run(store, job_name), may_edit))


def get_report(store: Readable, since: Since) -> Response:
    """Answer with the HTML file that `steptime report` writes, restricted to runs that the user may read."""
    text = html(report_since(store, since), time.time())
    headers = HEADERS | {"Content-Disposition": 'attachment; filename="steptime-report.html"'}
    return Response(text, media_type="text/html", headers=headers)


def get_metrics(store: Readable) -> Response:
    """Answer with metrics of the runs that the user may read, for Prometheus in OpenMetrics format."""
    text = openmetrics(store, time.time())
    return Response(text, headers=HEADERS | {"Content-Type": CONTENT_TYPE})


def get_plan(request: Request, store: Readable) -> Response:
    """Answer with the plan of the options in the URL's query, or 422 if they are impossible."""
    try:
        return json_response(describe_plan(store, request.query_params))
    except UserError as error:
        raise HTTPException(status_code=422, detail=str(error)) from None


def get_node(
    store: Readable,
    cluster: Annotated[str, Query(max_length=200)],
    name: Annotated[str, Query(alias="node", max_length=200)],
) -> Response:
    """Answer with what the last four weeks' runs show about a node, and the command to keep jobs off it."""
    return json_response(answers.node(store, cluster, name))


def get_nodes(store: Readable) -> Response:
    """Answer with by how much each node slows the runs on it, the slowest first."""
    return json_response(answers.nodes(store))


def get_node_pairs(store: Readable, sweep: Annotated[str, Query(max_length=200)]) -> Response:
    """Answer with what a sweep over pairs of nodes found, or 404 if no run of the sweep had two nodes."""
    try:
        return json_response(answers.node_pairs(store, sweep))
    except UserError as error:
        raise HTTPException(status_code=404, detail=str(error)) from None


def get_trials(store: Readable, since: Since = 0) -> Response:
    """Answer with the answers of all trials with a run submitted at or after `since` (Unix time)."""
    return json_response(answers.trials(store, since))


def get_trial(store: Readable, together: Annotated[str, Query(max_length=600)]) -> Response:
    """Answer with the answer of the trial of a DAG run: see `pages.answers.trial`."""
    return json_response(answers.trial(store, together))


def get_trial_csv(store: Readable, together: Annotated[str, Query(max_length=600)]) -> Response:
    """Answer with the variants of a trial as a CSV file."""
    return _csv(answers.trial_csv(store, together), "steptime-trial.csv")


def get_two_sets(
    store: Readable,
    a: Annotated[str, Query(max_length=1000)] = "",
    b: Annotated[str, Query(max_length=1000)] = "",
    by: Annotated[Measure | None, Query()] = None,
) -> Response:
    """Answer with how two sets of runs compare over all cells, or 422 if a set cannot be read or is empty."""
    try:
        return json_response(answers.two_sets(store, a, b, by))
    except UserError as error:
        raise HTTPException(status_code=422, detail=str(error)) from None


def get_differences(
    store: Readable, run: Annotated[str, Query()], other: Annotated[str, Query()]
) -> Response:
    """Answer with how two runs differ; `other` may be the unique beginning of a run's name."""
    row = find_run(store, run)
    try:
        another = store.run_named(other)
    except UserError as error:
        raise HTTPException(status_code=404, detail=str(error)) from None
    return json_response(answers.differences(store, row, another))


def _value(name: str, text: str) -> str | int:
    """Convert a filter's text to the type of its column. Raises HTTPException 422 if it is not a number."""
    if BY_NAME[name].kind != "integer":
        return text
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        detail = f"'{one_line(text)}' is not a value of {name}: write a number of at most 9 digits"
        raise HTTPException(status_code=422, detail=detail)
    return int(text)


def find_run(store: Store, job_name: str) -> dict[str, Any]:
    """Return the row of a run. Raises HTTPException 404 if it does not exist or the user may not read it."""
    rows = store.results(job_name=job_name, include_rejected=True)
    if not rows:
        raise HTTPException(status_code=404, detail=f"there is no run '{job_name}'")
    return rows[0]


def json_response(content: dict[str, Any]) -> Response:
    """Make a JSON response that includes the version of its schema."""
    text = json.dumps({"schema_version": SCHEMA_VERSION} | content, separators=(",", ":"), allow_nan=False)
    return Response(text.encode(), media_type="application/json", headers=HEADERS)


def _csv(text: str, name: str) -> Response:
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="text/csv", headers=headers)


class Acceptance(Frozen):
    """A request to accept the changed step time of a run as the new baseline, with the reason."""

    job_name: Text
    note: Note


def post_acceptance(store: Readable, may_edit: MayEdit, user: GetUserDep, acceptance: Acceptance) -> Response:
    """Accept a run's changed step time as the new baseline of its series.

    The answer names the first run of the baseline. Allowed for users who may edit runs of the run's DAG. The
    store records the user's name.
    """
    row = find_run(store, acceptance.job_name)
    if not may_edit(row["dag_id"]):
        whose = (
            f"of the DAG {row['dag_id']}" if row["dag_id"] else "of no DAG: type 'steptime results accept'"
        )
        raise HTTPException(status_code=403, detail=f"you may not edit runs {whose}")
    try:
        first = judgements.accept(store, row["job_name"], note=acceptance.note, accepted_by=user.get_name())
    except UserError as error:
        raise HTTPException(status_code=422, detail=str(error)) from None
    update_incidents(Store(store.url))  # of all DAGs
    return json_response({"job_name": first})


class IncidentChange(Frozen):
    """A note on an incident, and what else becomes of it.

    `accept` closes it and makes the changed step times the new baselines; `silence` lets it count apart until
    the day `until` begins where Airflow runs, whose days the pages print; `end silence` again as before.
    """

    note: Note
    action: Literal["note", "accept", "silence", "end silence"] = "note"
    until: date = date.min


def post_incident(
    store: Readable, may_edit: MayEdit, user: GetUserDep, incident_id: IncidentId, change: IncidentChange
) -> Response:
    """Set the note of an incident; also accept or silence it, or end its silence, as `change.action` says.

    Answers with its `state`. Allowed for users who see all its series and may edit runs of the DAGs of the
    affected ones. The store records the user's name.
    """
    try:
        incident = incidents.find_incident(store, incident_id)
    except UserError as error:
        raise HTTPException(status_code=404, detail=str(error)) from None
    if not incident.may_be_changed(may_edit):
        raise HTTPException(
            status_code=403,
            detail="you may not edit this incident: some of its cells ran in DAGs that you may not edit",
        )
    try:
        if change.action == "end silence":
            incidents.end_silence(store, incident_id)
        act: Callable[..., incidents.Incident] = incidents.comment
        if change.action == "accept":
            act = incidents.accept
        elif change.action == "silence":
            act = partial(incidents.silence, until=until_when(change.until.isoformat(), time.time(), "until"))
        changed = act(store, incident_id, note=change.note, author=user.get_name())
    except UserError as error:
        raise HTTPException(status_code=422, detail=str(error)) from None
    return json_response({"state": changed.state})
