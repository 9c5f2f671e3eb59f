"""Llama 3.1 405b as release 26.06 of Megatron-Bridge runs it, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("llama31_2606", workload="llama3.1-26.06")
