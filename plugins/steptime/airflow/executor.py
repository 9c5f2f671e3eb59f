"""The executor of `steptime up`: Airflow's LocalExecutor, whose tasks have their imports already."""

from multiprocessing.connection import wait

from airflow.executors.local_executor import LocalExecutor

_IDLE_S = 0.5
"""How long a scheduler with nothing to do waits before it looks for events of triggers and new DAG runs."""


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

    def heartbeat(self) -> None:
        """Wait for a task's end if none can be started before, then do what is to be done.

        The scheduler would sleep in its own loop, and see each end only after that.
        """
        queued = self.queued_tasks or self.queued_callbacks or self.queued_connection_tests
        if not queued or len(self.running) >= self.parallelism:
            wait([self.result_queue._reader], _IDLE_S)  # type: ignore[attr-defined]
        super().heartbeat()
