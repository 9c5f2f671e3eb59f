"""A package, so that the Airflow of its tests is stopped after the last of them."""
