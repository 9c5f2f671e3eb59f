"""Kimi K2: Megatron-Bridge's own recipe, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("kimi_k2", workload="kimi-k2")
