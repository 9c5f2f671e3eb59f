"""Nemotron 3 Nano and Super as release 26.04 of Megatron-Bridge runs them, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron3_2604", workload="nemotron3-26.04")
