"""Control Airflow from outside: start and stop it, supervise it, and use its REST API."""
