"""Qwen3 30b and 235b, mixtures of experts: Megatron-Bridge's own recipes, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("qwen3", workload="qwen3")
