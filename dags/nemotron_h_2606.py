"""Nemotron-H 56b as release 26.06 runs it: Megatron-Bridge's own recipe, by name."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron_h_2606", workload="nemotron-h-26.06")
