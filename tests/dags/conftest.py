"""These tests read DAG files with Airflow, so that its home must be set first."""

from ..airflow import airflow_home  # noqa: F401, TID252
