"""Names that those who ask for GPU slots, those who hold them, and Airflow's hooks share."""

from pydantic import NonNegativeInt, PositiveInt

from steptime.frozen import Frozen

SLOTS_DAG = "gpu_slots"
"""The DAG of which a run holds slots for another DAG run."""
HOLD_TASK = "hold"
"""Its task that holds them while it runs or is deferred."""
HOLD_OPERATOR = "HoldSlotsOperator"
"""The class of that task, which Airflow keeps of each task instance."""

ASK_TASK = "take_slots"
"""The task of a training DAG that asks for slots, and waits until they are held."""
ASK_OPERATOR = "TakeSlotsOperator"

CHECK_OPERATORS = ("CheckParamsOperator", "CheckSweepOperator")
"""First tasks of DAGs, which refuse what the pools can never give."""
POOLS_KEY = "pools"
"""Of their task state stores: the pools that there are, left there by Airflow's scheduler."""

HELD_BY = "slots_held_by"
"""In the conf of a cell's DAG run: the `HeldBy` that has its slots already."""


STARTED_RUN_KEY = "started_run"
"""XCom of a task that starts a DAG run: the `StartedRun`, written before it is started."""


class Slots(Frozen):
    """What is taken of a cluster's pool."""

    pool: str
    number: PositiveInt
    """As many as the jobs have GPUs together, and at most all of the cluster's."""


class StartedRun(Frozen):
    """The DAG run that a task has started."""

    dag_id: str
    run_id: str


class Asked(Slots):
    """The conf of a run of `SLOTS_DAG`: which slots it holds, and for which DAG run."""

    dag_id: str
    run_id: str


class Pool(Frozen, extra="ignore"):
    """A pool that an Airflow has."""

    name: str
    slots: int
    """-1: no bounds."""
    include_deferred: bool
    """Whether deferred tasks hold their slots."""


class HeldBy(Frozen):
    """The mapped task of a sweep that has started a DAG run, and holds its slots."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: NonNegativeInt
    sweep: str | None = None
    """The sweep's name; None if an earlier steptime has started it."""
