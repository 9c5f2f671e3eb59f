"""What the tasks of a sweep leave for those who ask about its runs: Airflow's hooks and the command line."""

from enum import StrEnum

from pydantic import PositiveInt

from steptime.frozen import Frozen

CHECK_TASK = "check_sweep"
RUN_TASK = "cell.run"
"""The mapped task that starts the run of a cell, and waits for it."""
RUN_OPERATOR = "RunCellOperator"
"""Its class, which Airflow keeps of each task instance."""

SLOTS_KEY = "slots"
"""XCom of `CHECK_TASK`: the `Slots` of each cell, by its map index."""
STARTED_RUN_KEY = "started_run"
"""XCom of `RUN_TASK`: the `StartedRun` of a cell, written before it is started."""


class Slots(Frozen):
    """What a cell takes of its cluster's pool while it runs."""

    pool: str
    number: PositiveInt
    """As many as its jobs have GPUs together, and at most all of the cluster's."""


class StartedRun(Frozen):
    """The DAG run of a cell."""

    dag_id: str
    run_id: str


class StopRuns(StrEnum):
    """What a person does to a sweep, or to a cell of it, that ends the runs: the values of a param."""

    FAILED = "marked failed"
    CLEARED = "marked failed or cleared"
    NEVER = "nothing"


STOP_RUNS_PARAM = "stop_runs_when"
