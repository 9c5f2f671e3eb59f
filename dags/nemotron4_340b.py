"""Nemotron4 340b at weak and strong scaling, release 25.12."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("nemotron4_340b", workload="nemotron4-340b")
