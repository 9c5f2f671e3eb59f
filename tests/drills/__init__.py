"""A package, so that the Airflow of its tests stops after the last of them."""
