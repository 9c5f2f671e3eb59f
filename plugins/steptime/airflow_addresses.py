"""Build paths of pages in the Airflow UI, relative to its base address, without importing Airflow."""

from urllib.parse import quote

RUN_ROUTE = "step-times-of-run"
"""The last part of the address of the tab on a DAG run."""


def dag_run_path(dag_id: str, dag_run_id: str) -> str:
    """Return the path of a DAG run's page: `/dags/steptime_sweep/runs/manual__2026-11-21T10:00:00+00:00`.

    Colons and plus signs are not escaped, as in Airflow's own links: otherwise the page does not highlight
    the tab that is open.
    """
    return f"/dags/{quote(dag_id, safe='')}/runs/{quote(dag_run_id, safe=':+')}"
