"""The pages in the Airflow UI: comparisons, result tables and charts, behind Airflow's login.

Airflow's API server mounts the app under `/steptime`. Every route, static files included, needs a logged-in
user. Runs of a DAG are shown to users who may read that DAG. Runs of a DAG that Airflow no longer knows are
hidden, as nobody's permission can be checked. Runs without a DAG are shown to every user.
"""

import logging
from pathlib import Path

from airflow.api_fastapi.core_api.security import requires_authenticated
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles

from steptime.errors import SystemFailure, UserError
from steptime.pages.server import endpoints
from steptime.pages.server.inputs import explain_refusal, refuse_nul
from steptime.pages.server.permissions import require_own_page

_log = logging.getLogger(__name__)
_STATIC = Path(__file__).parents[1] / "static"
_HEADERS = {
    # The page runs in an iframe of the Airflow UI and loads nothing from anywhere else.
    "Content-Security-Policy": "; ".join(
        ("default-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'")
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def create_app() -> FastAPI:
    """Create the FastAPI app that Airflow mounts; anonymous requests get 401."""
    app = FastAPI(
        title="steptime",
        dependencies=[Depends(requires_authenticated()), Depends(refuse_nul)],
        openapi_url=None,  # this also turns off the pages of documentation
        exception_handlers={
            RequestValidationError: explain_refusal,
            UserError: _misconfigured,
            SystemFailure: _store_failed,
        },
    )
    app.get("/")(_page)
    app.get("/static/{path:path}")(_asset)
    app.get("/api/columns")(endpoints.get_columns)
    app.get("/api/compare")(endpoints.get_two_sets)
    app.get("/api/comparison")(endpoints.get_comparison)
    app.get("/api/differences")(endpoints.get_differences)
    app.get("/api/incidents")(endpoints.get_incidents)
    app.get("/api/results")(endpoints.get_results)
    app.get("/api/results.csv")(endpoints.get_results_csv)
    app.get("/api/metrics")(endpoints.get_metrics)
    app.get("/api/scaling")(endpoints.get_scaling)
    app.get("/api/node")(endpoints.get_node)
    app.get("/api/nodes")(endpoints.get_nodes)
    app.get("/api/pairs")(endpoints.get_node_pairs)
    app.get("/api/plan")(endpoints.get_plan)
    app.get("/api/report.html")(endpoints.get_report)
    app.get("/api/series")(endpoints.get_series)
    app.get("/api/trend/{job_name:path}")(endpoints.get_trend)
    app.get("/api/trial")(endpoints.get_trial)
    app.get("/api/trial.csv")(endpoints.get_trial_csv)
    app.get("/api/trials")(endpoints.get_trials)
    app.get("/api/runs/{job_name:path}")(endpoints.get_run)
    app.post("/api/accept", dependencies=[Depends(require_own_page)])(endpoints.post_acceptance)
    app.post("/api/incidents/{incident_id}", dependencies=[Depends(require_own_page)])(
        endpoints.post_incident
    )
    return app


def _page() -> FileResponse:
    return FileResponse(_STATIC / "index.html", headers=_HEADERS)


async def _asset(path: str, request: Request) -> Response:
    """Serve a static file; 304 if the browser has it already.

    This is a route, because a mounted app would not require a login.
    """
    response = await StaticFiles(directory=_STATIC).get_response(path, request.scope)
    response.headers.update(_HEADERS)
    return response


def _misconfigured(_: Request, error: Exception) -> JSONResponse:
    """Answer with a mistake in steptime's configuration: the message says what to change."""
    return JSONResponse({"detail": str(error)}, status_code=503, headers=endpoints.HEADERS)


def _store_failed(_: Request, error: Exception) -> JSONResponse:
    """Answer that the metrics store failed; the reason, with its address, goes to the server's log."""
    _log.error("%s", error)
    sentence = "the metrics store failed: try again, and see the log of Airflow's API server for the reason"
    return JSONResponse({"detail": sentence}, status_code=503, headers=endpoints.HEADERS)
