"""A run from launch to the end of its job, in the ledger, on the cluster and in its log; without Airflow."""
