"""One DAG for each file of config/workloads. `config_files.py` reports the files that cannot be read."""

from airflow.sdk import get_parsing_context

from steptime.airflow.dag_builder import training_dag
from steptime.recipes.workloads import load_workloads

wanted = get_parsing_context().dag_id  # set in the process of a task, which needs no other DAG
for workload in load_workloads()[0]:
    if wanted in (None, workload.dag_id):
        training_dag(workload.dag_id, workload=workload.workload)
