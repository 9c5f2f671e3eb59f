"""Llama 3 70b: Megatron-Bridge's own recipe, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("llama3", workload="llama3")
