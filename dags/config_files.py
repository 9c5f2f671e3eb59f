"""No DAG: reports the files of config/workloads and config/sweeps that cannot be run, as its import error."""

from steptime.airflow.sweep.cells import check_config_files  # Airflow reads files with "dag" and "airflow"

check_config_files()
