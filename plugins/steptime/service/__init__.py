"""What drives an Airflow from outside: up and down, its supervisor, and the client of its REST API."""
