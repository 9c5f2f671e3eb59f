"""Llama 3.1: trained at each asked-for number of GPUs, and once more with a checkpoint saved and loaded."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("llama31", workload="llama3.1", defaults={"checkpoint": True})
