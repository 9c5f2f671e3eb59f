"""The runs that hold GPUs of a cluster's pool for other DAGs' runs; those start them."""

from steptime.airflow.slots.dag import slots_dag

dag = slots_dag()
