"""Qwen3 30b and 235b as release 25.12 ran them: Megatron-Bridge's own recipes, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("qwen3_2512", workload="qwen3-25.12")
