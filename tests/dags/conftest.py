"""These tests read DAG files with Airflow, so Airflow's home must be set first."""

from ..airflow import airflow_home  # noqa: F401, TID252
