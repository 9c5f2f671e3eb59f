"""Nemotron-H 56b, a hybrid of Mamba and attention layers."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron_h", workload="nemotron-h")
