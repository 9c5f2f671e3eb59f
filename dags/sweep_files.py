"""No DAG: a file of config/sweeps that cannot be run is an import error of this file, and of no DAG's."""

from steptime.airflow.sweep.cells import check_all_sweeps  # Airflow looks for "dag" and "airflow" in here

check_all_sweeps()
