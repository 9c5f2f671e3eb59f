"""The sweep config/sweeps/weekly.yaml, Mondays at 06:00 UTC once somebody has unpaused it."""

from steptime.airflow.sweep.dag import sweep_dag

dag = sweep_dag("weekly_scaling_sweep", sweep="weekly", cron="0 6 * * 1")
