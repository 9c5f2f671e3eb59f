"""The pages in the Airflow UI: result tables and charts, behind Airflow's login.

Airflow's API server mounts the app under `/steptime`. Every route, the static files included, asks for a
logged-in user, and rows of DAGs that the user may not read are left out.
"""

from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Query
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool

from steptime.results.store import Store

_STATIC = Path(__file__).parent / "static"
_ASSETS = {
    "results.js": "text/javascript",
    "charts.js": "text/javascript",
    "results.css": "text/css",
    "icon.svg": "image/svg+xml",
    "vendor/chart.umd.min.js": "text/javascript",
}
# The page runs in an iframe of the Airflow UI and loads nothing from anywhere else.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def create_app() -> FastAPI:
    """The application that Airflow mounts; open to nobody without a login (anonymous requests get 401)."""
    app = FastAPI(
        title="steptime",
        dependencies=[Depends(requires_authenticated())],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.get("/", response_class=FileResponse)(_page)
    app.get("/static/{name:path}", response_class=FileResponse)(_asset)
    app.get("/api/results")(_results)
    app.get("/api/runs/{job_name}")(_run)
    return app


def _page() -> FileResponse:
    return FileResponse(_STATIC / "index.html", media_type="text/html", headers=_HEADERS)


def _asset(name: str) -> FileResponse:
    if name not in _ASSETS:
        raise HTTPException(status_code=404, detail=f"there is no file '{name}'")
    return FileResponse(_STATIC / name, media_type=_ASSETS[name], headers=_HEADERS)


async def _results(
    user: GetUserDep,
    dag_id: Annotated[str | None, Query()] = None,
    dag_run_id: Annotated[str | None, Query()] = None,
) -> list[dict[str, Any]]:
    """Every run that the user may see, newest first, rejected ones included and marked so."""
    readable = await run_in_threadpool(_readable_dags, user)

    def read() -> list[dict[str, Any]]:
        with Store() as store:
            rows = store.results(dag_id=dag_id, dag_run_id=dag_run_id, include_rejected=True)
        return [row for row in rows if row["dag_id"] is None or row["dag_id"] in readable]

    return await run_in_threadpool(read)


async def _run(job_name: str, user: GetUserDep) -> dict[str, Any]:
    """One run with its steps, its checks, and what is needed to repeat it."""
    readable = await run_in_threadpool(_readable_dags, user)

    def read() -> dict[str, Any]:
        with Store() as store:
            rows = store.results(job_name=job_name, include_rejected=True)
            if not rows or (rows[0]["dag_id"] is not None and rows[0]["dag_id"] not in readable):
                raise HTTPException(status_code=404, detail=f"there is no run '{job_name}'")
            return {
                "run": rows[0],
                "steps": store.steps(job_name),
                "checks": store.checks(job_name),
                "provenance": store.provenance(job_name),
            }

    record: dict[str, Any] = await run_in_threadpool(read)
    return record


def _readable_dags(user: Any) -> set[str]:
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))
