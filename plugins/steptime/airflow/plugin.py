"""What steptime adds to the Airflow UI: a page in the navigation and a tab on every DAG run."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from steptime.web.app import create_app

PREFIX = "/steptime"


class SteptimePlugin(AirflowPlugin):
    """Found by Airflow through the entry point `airflow.plugins`."""

    name = "steptime"
    fastapi_apps: ClassVar[list[dict[str, Any]]] = [
        {"app": create_app(), "url_prefix": PREFIX, "name": "steptime results"}
    ]
    external_views: ClassVar[list[dict[str, Any]]] = [
        {
            "name": "Step times",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "url_route": "step-times",
            "icon": f"{PREFIX}/static/icon.svg",
        },
        {
            "name": "Step times",
            "href": f"{PREFIX}/?dag_id={{DAG_ID}}&dag_run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "step-times-of-run",
            "icon": f"{PREFIX}/static/icon.svg",
        },
    ]
