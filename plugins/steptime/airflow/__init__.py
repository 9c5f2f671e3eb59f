"""The tasks of Airflow: operators, sensor, triggers, params, the DAG of a workload, the plugin."""
