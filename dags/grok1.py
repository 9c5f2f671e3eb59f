"""Grok-1, a mixture of experts: its tiny size."""

from steptime.airflow.dag_builder import training_dag

dag = training_dag("grok1", workload="grok1")
