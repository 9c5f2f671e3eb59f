"""The server of the pages in the Airflow UI: who may read what, and answers over HTTP."""
