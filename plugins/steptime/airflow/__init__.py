"""steptime in Airflow: operators, a sensor, triggers, DAG params, builders of DAGs, and the plugin."""
