"""The sweep config/sweeps/nodes.yaml, Saturdays at 02:00 UTC once somebody has unpaused it."""

from steptime.airflow.sweep.dag import sweep_dag

dag = sweep_dag("weekly_node_sweep", sweep="nodes", cron="0 2 * * 6")
