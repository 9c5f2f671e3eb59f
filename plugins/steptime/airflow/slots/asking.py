"""How a DAG run asks for slots of its cluster's pool, so that the pool bounds the cluster as a whole.

A task holds slots while it runs or is deferred, but no task of a training DAG lasts as long as all of its
jobs, and clearing it would release the slots. So a run of the DAG `gpu_slots` holds them until this DAG run
has ended. The cells of a sweep have theirs already, by the sweep's task that started them.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from pydantic import TypeAdapter, ValidationError

from steptime.airflow.base import airflow_errors, as_json, dag_run_of
from steptime.airflow.dag_runs import has_scheduler, is_paused, start_dag_run
from steptime.airflow.slots.names import (
    HELD_BY,
    POOLS_KEY,
    SLOTS_DAG,
    STARTED_RUN_KEY,
    Asked,
    HeldBy,
    Pool,
    Slots,
    StartedRun,
)
from steptime.airflow.slots.pools import pool_name, require_pools, slots_for
from steptime.airflow.slots.triggers import GrantTrigger, is_held, is_held_by
from steptime.airflow.states import ENDED, state_of_dag_run
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.recipes.planning import Plan


class TakeSlotsOperator(BaseOperator):
    """Has slots of the cluster's pool held for this DAG run, and waits, deferred, until they are.

    It takes as many as the plan's jobs have GPUs together, and at most all; none if the cluster's file
    has no `gpus`. As a setup it is cleared with whatever is submitted anew, and asks again if the run
    that held the slots has ended.

    :param plan: what `CheckParamsOperator` returned. (templated)
    """

    template_fields: Sequence[str] = ("plan",)
    ui_color: str = "#f3ece2"

    def __init__(self, *, plan: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> None:
        """Ask, and wait."""
        with airflow_errors():
            slots = slots_of(Plan.model_validate(self.plan))
        if slots is None:
            self.log.info("the cluster's file has no gpus: no pool bounds what runs there")
            return
        if not has_scheduler():
            self.log.warning("'airflow dags test' has no scheduler that gives slots: none are taken")
            return
        cell = cell_of(context)
        if cell is not None and is_held_by(cell):
            self.log.info("%s holds %d slots of %s for this run", cell.run_id, slots.number, slots.pool)
            return
        holder = self._holder(slots, context)
        if is_held(holder, None):
            self.log.info("%s holds %d slots of %s", holder, slots.number, slots.pool)
            return
        self.log.info("waiting for %d slots of %s, which %s is to hold", slots.number, slots.pool, holder)
        trigger = GrantTrigger(holder=holder, held_by=None if cell is None else as_json(cell))
        raise TaskDeferred(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Ask again: the holder has ended before it had the slots."""
        self.log.warning("%s has ended before it held the slots", event["ended"])
        self.execute(context)

    def _holder(self, slots: Slots, context: Context) -> str:
        """The run that holds the slots, or is to; started unless one goes on."""
        ti = context["ti"]
        if is_paused(ti, SLOTS_DAG):
            raise AirflowFailException(
                f"the DAG '{SLOTS_DAG}' is paused, and nobody else gives slots: unpause it, and clear "
                "this task"
            )
        name = f"{ti.dag_id}__{hashlib.sha256(dag_run_of(context).encode()).hexdigest()[:12]}"
        number = 1
        while state_of_dag_run(SLOTS_DAG, f"{name}__{number}") in ENDED:
            number += 1
        holder = f"{name}__{number}"
        # Before it is started: whoever fails this task fails it, too (see `sweep.hooks`).
        ti.xcom_push(key=STARTED_RUN_KEY, value=as_json(StartedRun(dag_id=SLOTS_DAG, run_id=holder)))
        asked = Asked(pool=slots.pool, number=slots.number, dag_id=ti.dag_id, run_id=ti.run_id)
        start_dag_run(SLOTS_DAG, holder, asked.model_dump(mode="json"))
        return holder


def options_of(context: Context) -> dict[str, Any]:
    """Return what the DAG run was asked for: its params, and the rest of its conf."""
    asked_for = {**context["params"], **(context["dag_run"].conf or {})}
    asked_for.pop(HELD_BY, None)  # of a sweep's cell: about who started it
    return asked_for


def slots_of(plan: Plan) -> Slots | None:
    """Return what a plan's jobs take of their cluster's pool together; None if the cluster is unbounded.

    Raises UserError if one of them has more GPUs than the cluster.
    """
    config = load_cluster(plan.request.cluster)
    if config.gpus is None:
        return None
    at_once = sum(run.recipe.gpus for run in plan.runs)
    at_once += sum(pair.save.recipe.gpus for pair in plan.checkpoint_pairs)
    largest = max(run.recipe.gpus for run in plan.all_runs)
    return Slots(pool=pool_name(config.name), number=slots_for(largest, at_once, config, "this run"))


def require_slots(slots: Iterable[Slots], what: str, context: Context) -> None:
    """Raise UserError if Airflow has no pool that can ever give these slots: tasks would wait for ever.

    For the first task of a DAG, with which Airflow's scheduler has left the pools.
    """
    if not has_scheduler():
        return
    pools = context["task_state_store"].get(POOLS_KEY)
    if pools is None:
        raise UserError(
            "Airflow's scheduler has left no list of pools: install steptime on the machines of its "
            "scheduler and API server, too, and clear this task."
        )
    require_pools(TypeAdapter(list[Pool]).validate_python(pools), slots, what, "this Airflow")


def cell_of(context: Context) -> HeldBy | None:
    """Return the sweep's task that started this DAG run, if that task confirms it."""
    ti = context["ti"]
    held_by = (context["dag_run"].conf or {}).get(HELD_BY)
    if held_by is None:
        return None
    try:
        cell = HeldBy.model_validate(held_by)
    except ValidationError as error:
        raise AirflowFailException(f"'{HELD_BY}' is not for people to set: leave it out ({error})") from None
    started = ti.xcom_pull(
        dag_id=cell.dag_id,
        run_id=cell.run_id,
        task_ids=cell.task_id,
        map_indexes=cell.map_index,
        key=STARTED_RUN_KEY,
    )
    me = StartedRun(dag_id=ti.dag_id, run_id=ti.run_id)
    return cell if started is not None and StartedRun.model_validate(started) == me else None
