"""Not a DAG: its import error in Airflow's UI lists the mistakes in the files of config/."""

from steptime.airflow.dags import report_broken_files

report_broken_files()
