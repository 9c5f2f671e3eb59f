"""The pages in the Airflow UI: result tables and charts, behind Airflow's login.

Airflow's API server mounts the app under `/steptime`. Every route, the static files included, asks for a
logged-in user. Rows of a DAG are for users who may read that DAG; rows of a DAG that Airflow does not know
(any more) are left out, as it is unknown who may read them. Rows without a DAG are for all who log in.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool

from steptime.errors import SystemFailure, UserError
from steptime.results.columns import COLUMNS, SCHEMA_VERSION
from steptime.results.record import record_path
from steptime.results.repeating import repeat_command_of_record
from steptime.results.report import with_scaling_efficiency
from steptime.results.store import Store
from steptime.web.dag_runs import why_without_results

MAX_RUNS = 10_000
"""A page shows the newest runs up to this number: more would make browsers slow, and nobody reads them."""

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    # The page runs in an iframe of the Airflow UI and loads nothing from anywhere else.
    "Content-Security-Policy": "; ".join(
        ("default-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'")
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_API_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def create_app() -> FastAPI:
    """The application that Airflow mounts; open to nobody without a login (anonymous requests get 401)."""
    app = FastAPI(
        title="steptime",
        dependencies=[Depends(requires_authenticated())],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # What the metrics store raises: its sentence has what to do.
        exception_handlers={UserError: _unavailable, SystemFailure: _unavailable},
    )
    app.get("/", response_class=FileResponse)(_page)
    app.get("/static/{path:path}", response_class=FileResponse)(_asset)
    app.get("/api/columns")(_columns)
    app.get("/api/results")(_results)
    app.get("/api/runs/{job_name:path}")(_run)
    return app


def _page() -> FileResponse:
    return FileResponse(_STATIC / "index.html", media_type="text/html", headers=_HEADERS)


async def _asset(path: str, request: Request) -> Response:
    """A file of the page; 304 if the browser has it already. Not mounted: mounts skip dependencies."""
    response = await StaticFiles(directory=_STATIC).get_response(path, request.scope)
    response.headers.update(_HEADERS)
    return response


def _columns() -> JSONResponse:
    """What each column of the results is: heading, unit, how it is written."""
    columns = [column.published for column in COLUMNS]
    return JSONResponse({"schema_version": SCHEMA_VERSION, "columns": columns}, headers=_API_HEADERS)


async def _results(
    user: GetUserDep,
    dag_id: Annotated[str | None, Query()] = None,
    dag_run_id: Annotated[str | None, Query()] = None,
) -> Response:
    """The newest runs that the user may see in the order people read them, rejected ones included.

    `{"columns": […], "rows": [[…], …], "truncated": bool, "ended": …}`: names are not repeated with every
    row, as ten thousand rows are usual. The columns are those of `results.columns`. The runs of a sweep's DAG
    run are those of its cells. `ended` says why a DAG run has no results, once it has ended.
    """
    readable = await run_in_threadpool(_readable_dags, user)

    def read() -> bytes:
        with Store() as store:
            rows = _of_scope(store, dag_id, dag_run_id)
        visible = with_scaling_efficiency([row for row in rows[:MAX_RUNS] if _may_see(row, readable)])
        table = {
            "schema_version": SCHEMA_VERSION,
            "columns": [column.name for column in COLUMNS],
            "rows": [list(row.values()) for row in visible],
            "truncated": len(rows) > MAX_RUNS,
            "ended": _why_empty(rows, dag_id, dag_run_id, readable),
        }
        return json.dumps(table, separators=(",", ":"), allow_nan=False).encode()

    return Response(await run_in_threadpool(read), media_type="application/json", headers=_API_HEADERS)


def _of_scope(store: Store, dag_id: str | None, dag_run_id: str | None) -> list[dict[str, Any]]:
    """The newest runs, of one DAG run or of all; for a sweep's DAG run those of its cells."""
    every: dict[str, Any] = {"include_rejected": True, "limit": MAX_RUNS + 1}
    rows = store.results(dag_id=dag_id, dag_run_id=dag_run_id, **every)
    if rows or dag_id is None or dag_run_id is None:
        return rows
    return store.results(sweep_run=f"{dag_id}/{dag_run_id}", **every)


def _why_empty(
    rows: Sequence[Mapping[str, Any]], dag_id: str | None, dag_run_id: str | None, readable: set[str]
) -> str | None:
    if rows or dag_id not in readable or dag_run_id is None:
        return None
    return why_without_results(dag_id, dag_run_id)


async def _run(job_name: str, user: GetUserDep) -> JSONResponse:
    """One run with its steps, its checkpoints, its checks, and its record."""
    readable = await run_in_threadpool(_readable_dags, user)

    def read() -> dict[str, Any]:
        with Store() as store:
            rows = store.results(job_name=job_name, include_rejected=True)
            # The same answer for both: who may not see a run shall not learn that it exists.
            if not rows or not _may_see(rows[0], readable):
                raise HTTPException(status_code=404, detail=f"there is no run '{job_name}'")
            record = store.record(job_name)
            return {
                "schema_version": SCHEMA_VERSION,
                "run": rows[0],
                "steps": store.steps(job_name),
                "checkpoints": store.checkpoints(job_name),
                "checks": store.checks(job_name),
                **store.parsed_log(job_name),
                # As text: through numbers of a browser, 1.0 would become 1, and the checksum wrong.
                "record": record["content"],
                "record_sha256": record["sha256"],
                "record_path": record_path(rows[0]["log_path"]),
                "repeat_command": repeat_command_of_record(json.loads(record["content"])),
            }

    return JSONResponse(await run_in_threadpool(read), headers=_API_HEADERS)


def _may_see(row: Mapping[str, Any], readable: set[str]) -> bool:
    return row["dag_id"] is None or row["dag_id"] in readable


def _readable_dags(user: Any) -> set[str]:
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def _unavailable(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=503, headers=_API_HEADERS)
