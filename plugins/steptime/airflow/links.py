"""Links in the Airflow UI from steptime's tasks."""

from typing import Any

from airflow.sdk import BaseOperator, BaseOperatorLink

from steptime.airflow.versions import conf
from steptime.airflow_addresses import RUN_ROUTE, dag_run_path


class ResultsLink(BaseOperatorLink):
    """A link to the tab with the step times of the task's DAG run."""

    name = "Step times"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:  # noqa: ARG002
        """Return the URL of the DAG run's tab with step times."""
        return f"{base_address()}{dag_run_path(ti_key.dag_id, ti_key.run_id)}/plugin/{RUN_ROUTE}"


def base_address() -> str:
    """Return this Airflow's base address without a trailing slash; empty if it is not configured."""
    return str(conf.get("api", "base_url", fallback="")).rstrip("/")


def dag_run_address(dag_id: str, run_id: str) -> str:
    """Return the address of a DAG run's page."""
    return f"{base_address()}{dag_run_path(dag_id, run_id)}"
