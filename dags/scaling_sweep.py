"""Any sweep of config/sweeps, when somebody starts it."""

from steptime.airflow.sweep.dag import sweep_dag

dag = sweep_dag("scaling_sweep", sweep="weekly")
