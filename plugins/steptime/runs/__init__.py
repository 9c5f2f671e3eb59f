"""A run from launch to result: its job in the ledger, on the cluster and in its log; without Airflow."""
