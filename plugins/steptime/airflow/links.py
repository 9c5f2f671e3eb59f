"""The buttons that steptime's tasks have in the Airflow UI."""

from typing import TYPE_CHECKING
from urllib.parse import urlencode

from airflow.sdk import BaseOperator, BaseOperatorLink, conf

from steptime.airflow.plugin import PREFIX

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey


class ResultsLink(BaseOperatorLink):
    """To the step times of the task's DAG run, on steptime's page."""

    name = "Step times"

    def get_link(self, operator: BaseOperator, *, ti_key: "TaskInstanceKey") -> str:  # noqa: ARG002
        """Address of the page, filtered by DAG run."""
        base = conf.get("api", "base_url", fallback="").rstrip("/")
        return f"{base}{PREFIX}/?{urlencode({'dag_id': ti_key.dag_id, 'dag_run_id': ti_key.run_id})}"
