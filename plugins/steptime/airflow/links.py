"""The buttons that steptime's tasks have in the Airflow UI."""

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator, BaseOperatorLink, conf

from steptime.airflow.addresses import dag_run_path
from steptime.airflow.plugin import RUN_ROUTE

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class ResultsLink(BaseOperatorLink):
    """To the step times of the task's DAG run: the tab that the plugin adds to it."""

    name = "Step times"

    def get_link(self, operator: BaseOperator, *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002
        """Address of the tab."""
        base = conf.get("api", "base_url", fallback="").rstrip("/")
        return f"{base}{dag_run_path(ti_key.dag_id, ti_key.run_id)}/plugin/{RUN_ROUTE}"
