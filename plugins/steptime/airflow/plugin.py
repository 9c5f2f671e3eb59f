"""steptime's additions to Airflow's UI: a page in the navigation and a tab on every DAG run."""

import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from steptime.airflow_addresses import RUN_ROUTE

PREFIX = "/steptime"

_Message = MutableMapping[str, Any]
_AsgiApp = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]], Awaitable[None]
]


@functools.cache
def _pages() -> _AsgiApp:
    from steptime.pages.server.app import create_app

    app: _AsgiApp = create_app()
    return app


async def _serve(
    scope: _Message,
    receive: Callable[[], Awaitable[_Message]],
    send: Callable[[_Message], Awaitable[None]],
) -> None:
    """Serve the pages as an ASGI application, which is created at its first request.

    Airflow imports plugins in every task's process too, and there FastAPI would cost a second.
    """
    await _pages()(scope, receive, send)


class SteptimePlugin(AirflowPlugin):
    """steptime's plugin for Airflow, found through the entry point `airflow.plugins`."""

    name = "steptime"
    fastapi_apps: list[dict[str, Any]] = [  # noqa: RUF012 (Airflow declares it so)
        {"app": _serve, "url_prefix": PREFIX, "name": "steptime results"}
    ]
    external_views: list[dict[str, Any]] = [  # noqa: RUF012 (Airflow declares it so)
        {
            "name": "Step times",
            "href": "steptime/",  # relative to Airflow's base address, which may have a path
            "destination": "nav",
            "url_route": "step-times",
            "icon": "steptime/static/icon.svg",
        },
        {
            "name": "Step times",
            "href": "steptime/?dag_id={DAG_ID}&dag_run_id={RUN_ID}",
            "destination": "dag_run",
            "url_route": RUN_ROUTE,
            "icon": "steptime/static/icon.svg",
        },
    ]
