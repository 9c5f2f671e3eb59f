"""Cannot be imported, as where an Airflow and what it needs do not fit each other."""

raise RuntimeError("broken on purpose")
