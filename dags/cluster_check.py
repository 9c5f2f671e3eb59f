"""The check of a cluster, when somebody starts it: what `steptime cluster check` looks at."""

from steptime.airflow.cluster_check import cluster_check_dag

dag = cluster_check_dag("cluster_check")
