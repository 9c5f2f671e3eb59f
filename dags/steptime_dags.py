"""All DAGs of steptime. `make_dags(["llama3.1", "nemotron4"])` makes those of two workloads only."""

from steptime.airflow.dags import make_dags

make_dags()
