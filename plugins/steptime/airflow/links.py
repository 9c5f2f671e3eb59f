"""The buttons that steptime's tasks have in the Airflow UI."""

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperator, BaseOperatorLink, conf

from steptime.airflow.plugin import RUN_ROUTE

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class ResultsLink(BaseOperatorLink):
    """To the step times of the task's DAG run: the tab that the plugin adds to it."""

    name = "Step times"

    def get_link(self, operator: BaseOperator, *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002
        """Address of the tab."""
        base = conf.get("api", "base_url", fallback="").rstrip("/")
        # As Airflow writes it: with an escaped colon or plus its tabs do not know that they are open.
        run_id = quote(ti_key.run_id, safe=":+")
        return f"{base}/dags/{quote(ti_key.dag_id)}/runs/{run_id}/plugin/{RUN_ROUTE}"
