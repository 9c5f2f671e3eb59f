"""Nemotron 3 (Nano, Super, Ultra and 3.5 Lightning): Megatron-Bridge's own recipes, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron3", workload="nemotron3")
