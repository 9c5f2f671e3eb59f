"""What the tasks of a sweep leave for those who ask about its runs: Airflow's hooks and the command line."""

from enum import StrEnum

from pydantic import NonNegativeInt

from steptime.frozen import Frozen

CHECK_TASK = "check_sweep"
RUN_TASK = "cell.run"
"""The mapped task that starts the run of a cell, and waits for it."""
RUN_OPERATOR = "RunCellOperator"
"""Its class, which Airflow keeps of each task instance."""

CONFIRM_TASK = "confirm"
FRESH_RUN_TASK = "fresh.run"
"""The same as `RUN_TASK`, for cells that are run again to confirm a suspicion."""

PLANNED_IN = {RUN_TASK: CHECK_TASK, FRESH_RUN_TASK: CONFIRM_TASK}
"""By the task that starts the runs of cells, the one that has planned these."""

STARTED_RUN_KEY = "started_run"
"""XCom of a task that starts a DAG run: the `StartedRun`, written before it is started."""

HELD_BY = "slots_held_by"
"""In the conf of a cell's DAG run: the `HeldBy` that has started it."""


class StartedRun(Frozen):
    """The DAG run that a task has started."""

    dag_id: str
    run_id: str


class HeldBy(Frozen):
    """The mapped task of a sweep that has started a DAG run."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: NonNegativeInt
    sweep: str


class StopRuns(StrEnum):
    """What a person does to a sweep, or to a cell of it, that ends the runs: the values of a param."""

    FAILED = "marked failed"
    CLEARED = "marked failed or cleared"
    NEVER = "nothing"


STOP_RUNS_PARAM = "stop_runs_when"
