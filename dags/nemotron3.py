"""Nemotron 3 Nano and Super, hybrids with experts: Megatron-Bridge's own recipes, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron3", workload="nemotron3")
