"""The executor of `steptime up`: Airflow's LocalExecutor, whose tasks have their imports already."""

from airflow.executors.local_executor import LocalExecutor


class PreloadedExecutor(LocalExecutor):
    """Imports what tasks of steptime use before its workers are forked, from which each task is forked.

    Each task would import it anew: a `validate` Great Expectations, with 2 to 3 s of CPU beside a training
    that is measured. Code that is changed is seen by tasks after the next start of Airflow.
    """

    def start(self) -> None:
        """Import, then start the workers."""
        from steptime.airflow import dag_builder  # noqa: F401
        from steptime.judging import comparison, judgements  # noqa: F401
        from steptime.results import quality, row_checks  # noqa: F401
        from steptime.tracking import following  # noqa: F401

        row_checks.load_library()
        super().start()
