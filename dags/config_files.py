"""Not a DAG: its import error lists the files of config/workloads and config/sweeps that cannot be run.

Airflow reads this file because it has the words "dag" and "airflow" in it.
"""

from steptime.staging.checking import check_config_files

check_config_files()
