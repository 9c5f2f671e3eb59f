"""The ids of steptime's DAGs: they begin with `steptime_`, beside the DAGs of others in one Airflow."""


def dag_id(name: str) -> str:
    """Return the id of a DAG of steptime: `steptime_llama3.1-25.04` for the workload `llama3.1-25.04`.

    `name` is the name of a workload with its release, or of one of the DAGs below.
    """
    return f"steptime_{name}"


def scheduled_sweep(sweep: str) -> str:
    """Return the id of the DAG that runs a sweep on its schedule: `steptime_sweep_weekly` for `weekly`."""
    return dag_id(f"sweep_{sweep}")


SWEEP = dag_id("sweep")
"""The DAG that runs any sweep on demand."""
TRIAL = dag_id("trial")
"""The DAG that runs any trial on demand; `pages/static/main.js` has the same id."""
CLUSTER_CHECK = dag_id("cluster_check")
SEND_REPORT = dag_id("send_report")
"""The page *This week* starts it, too: `pages/static/send.js` has the same id."""
