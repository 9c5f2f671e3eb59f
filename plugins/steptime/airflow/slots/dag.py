"""The DAG whose runs hold GPU slots of a cluster's pool for other DAG runs, until those have ended.

    hold ─▶ hold_again

`hold` gets its pool and its slots from `sweep.hooks`, by the conf that its DAG run was started with. If it
ends while the slots are still needed, `hold_again` starts another run in its place; as a teardown it runs
even if somebody fails the DAG run.
"""

from datetime import timedelta

from airflow.sdk import DAG

from steptime.airflow.slots.holding import HoldAgainOperator, HoldSlotsOperator
from steptime.airflow.slots.names import HOLD_TASK, SLOTS_DAG

MANY_RETRIES = {"retries": 100, "retry_delay": timedelta(seconds=10)}
"""For tasks that were lost with their worker or triggerer: nothing in them fails by itself."""
_RUNS_AT_ONCE = 1000


def slots_dag() -> DAG:
    """Build the DAG `gpu_slots`, whose runs the training DAGs start."""
    with DAG(
        dag_id=SLOTS_DAG,
        dag_display_name="GPU slots",
        description="Hold slots of a cluster's pool of GPUs for a run; started by the runs themselves",
        doc_md=_DOCUMENTATION,
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        max_active_runs=_RUNS_AT_ONCE,
        default_args=MANY_RETRIES,
        tags=["steptime", "internal"],
    ) as dag:
        hold = HoldSlotsOperator(task_id=HOLD_TASK, weight_rule="absolute")
        hold >> HoldAgainOperator(task_id="hold_again").as_teardown()
    return dag


_DOCUMENTATION = """A run of this DAG holds slots of the pool `gpus_<cluster>` for a run of another DAG.

Nobody has to start one: the task `take_slots` of a training DAG does. It ends when that run has ended, in
whatever way; end that run to give its slots back. If it is ended before, another one is started in its
place, and the training goes on.
"""
