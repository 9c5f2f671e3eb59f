"""What tasks return to one another: plans by the names of their runs, and models as JSON."""

from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import from_json

from steptime.airflow.versions import AirflowFailException
from steptime.frozen import Frozen
from steptime.recipes.planning import Plan


def as_json(model: BaseModel) -> dict[str, Any]:
    """Dump a model with all its fields for XCom and triggers, as JSON in which NaN is a string.

    Defaults are included: a release that changes one must not change a run in flight.
    """
    json: dict[str, Any] = from_json(model.model_dump_json())
    return json


class PairNames(Frozen):
    """The names of a run that saves a checkpoint, and of the run that loads it."""

    save: str
    load: str


class PlanNames(Frozen):
    """What the first task of a workload's DAG returns as XCom: the names of the runs that it has planned.

    The job ledger has the plans; see `Ledger.planned_run`.
    """

    cluster: str
    runs: tuple[str, ...]
    checkpoint_pairs: tuple[PairNames, ...]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the names of a plan's runs."""
        pairs = (PairNames(save=pair.save.name, load=pair.load.name) for pair in plan.checkpoint_pairs)
        return cls(
            cluster=plan.request.cluster,
            runs=tuple(run.name for run in plan.runs),
            checkpoint_pairs=tuple(pairs),
        )

    @property
    def all_runs(self) -> tuple[str, ...]:
        """The names of all runs: first those without a pair, then both of each pair."""
        return self.runs + tuple(name for pair in self.checkpoint_pairs for name in (pair.save, pair.load))


def returned_by(task_id: str, value: Any) -> Any:
    """Return what a task of this DAG run returned to this one.

    Raises AirflowFailException if that is nothing, as for a task that a person marked as success: only its
    own run can return it.
    """
    if value is None:
        raise AirflowFailException(
            f"the task '{task_id}' returned nothing, as when it did not run and was marked as success: clear "
            f"'{task_id}' to run it"
        )
    return value
