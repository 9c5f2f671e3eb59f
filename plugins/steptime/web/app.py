"""The pages in the Airflow UI: comparisons, result tables and charts, behind Airflow's login.

Airflow's API server mounts the app under `/steptime`. Every route, the static files included, asks for a
logged-in user. Rows of a DAG are for users who may read that DAG; rows of a DAG that Airflow does not know
(any more) are left out, as it is unknown who may read them. Rows without a DAG are for all who log in.
"""

from pathlib import Path

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from steptime.errors import SystemFailure, UserError
from steptime.web import endpoints
from steptime.web.permissions import require_own_page

_STATIC = Path(__file__).parent / "static"
_HEADERS = {
    # The page runs in an iframe of the Airflow UI and loads nothing from anywhere else.
    "Content-Security-Policy": "; ".join(
        ("default-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'")
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def create_app() -> FastAPI:
    """Create the application that Airflow mounts; anonymous requests get 401."""
    app = FastAPI(
        title="steptime",
        dependencies=[Depends(requires_authenticated())],
        openapi_url=None,  # without it there are no pages of documentation either
        # What the metrics store raises: its sentence has what to do.
        exception_handlers={UserError: _unavailable, SystemFailure: _unavailable},
    )
    app.get("/")(_page)
    app.get("/static/{path:path}")(_asset)
    app.get("/api/columns")(endpoints.columns)
    app.get("/api/comparison")(endpoints.comparison)
    app.get("/api/differences")(endpoints.differences)
    app.get("/api/incidents")(endpoints.all_incidents)
    app.get("/api/results")(endpoints.results)
    app.get("/api/results.csv")(endpoints.results_csv)
    app.get("/api/metrics")(endpoints.metrics)
    app.get("/api/scaling")(endpoints.scaling)
    app.get("/api/node")(endpoints.node)
    app.get("/api/plan")(endpoints.plan)
    app.get("/api/report.html")(endpoints.report)
    app.get("/api/series")(endpoints.series)
    app.get("/api/trend/{job_name:path}")(endpoints.series_trend)
    app.get("/api/runs/{job_name:path}")(endpoints.run)
    app.post("/api/accept", dependencies=[Depends(require_own_page)])(endpoints.accept)
    app.post("/api/incidents/{incident_id}", dependencies=[Depends(require_own_page)])(
        endpoints.change_incident
    )
    return app


def _page() -> FileResponse:
    return FileResponse(_STATIC / "index.html", headers=_HEADERS)


async def _asset(path: str, request: Request) -> Response:
    """A file of the page; 304 if the browser has it already. Not mounted: mounts skip dependencies."""
    response = await StaticFiles(directory=_STATIC).get_response(path, request.scope)
    response.headers.update(_HEADERS)
    return response


def _unavailable(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=503, headers=endpoints.HEADERS)
