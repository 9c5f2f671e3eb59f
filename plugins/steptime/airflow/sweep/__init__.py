"""The DAG that runs a sweep: cells, their operators, their trigger, and what Airflow calls for them."""
