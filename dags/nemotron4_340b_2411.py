"""Nemotron4 340b as release 24.11 ran it."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron4_340b_2411", workload="nemotron4-340b-24.11")
