"""What the tasks of a sweep leave for those who ask about its runs: Airflow's hooks and the command line."""

from enum import StrEnum

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

SLOTS_KEY = "slots"
"""XCom of a task that plans cells: the `Slots` of each, by its map index."""


class StopRuns(StrEnum):
    """What a person does to a sweep, or to a cell of it, that ends the runs: the values of a param."""

    FAILED = "marked failed"
    CLEARED = "marked failed or cleared"
    NEVER = "nothing"


STOP_RUNS_PARAM = "stop_runs_when"
