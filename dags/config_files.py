"""Not a DAG: its import error lists the files of config/workloads and config/sweeps that cannot be run."""

from steptime.airflow.sweep.cells import check_config_files  # Airflow reads files with "dag" and "airflow"

check_config_files()
