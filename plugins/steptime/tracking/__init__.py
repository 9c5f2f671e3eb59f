"""Following a job, its polls and its log, until it has ended; no task and no Airflow is known here."""
