"""Nemotron4 15b and 340b."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron4", workload="nemotron4")
