"""The fixtures of sweeps, for what sweeps and runs started by hand share."""

from tests.airflow.sweep.conftest import airflow_runs, check, task, write_sweep

__all__ = ["airflow_runs", "check", "task", "write_sweep"]
