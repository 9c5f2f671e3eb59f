"""Not a DAG: its import error in Airflow's UI lists the mistakes in files of workloads and sweeps."""

from steptime.airflow.dags import report_broken_files

report_broken_files()
