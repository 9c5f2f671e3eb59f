"""Every drill: the fault, the points at which it strikes, and the permitted outcomes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from drills import faults, points
from drills.points import Point
from drills.site import IMPATIENT, SWEEP_DAG, TRAINING_DAG, TRIAL_DAG

if TYPE_CHECKING:
    from drills.scene import Scene

Act = Callable[["Scene"], None]


def _nothing(scene): ...


@dataclass(frozen=True)
class Drill:
    """One kind of fault."""

    name: str
    points: tuple[Point, ...]
    strike: Act
    permitted: Mapping[str, tuple[int, ...]] = field(
        default_factory=lambda: MappingProxyType({"valid": (1,)})
    )
    """The permitted outcomes (`valid`, `cancelled`), each with the permitted numbers of jobs."""
    mend: Act = _nothing
    seen: Callable[["Scene"], bool] | None = None
    """The effect to wait for before `lasts_s` begins; for that the run goes on before the fault is mended."""
    ways: tuple[str, ...] = ("",)
    lasts_s: tuple[float, float] = (0.5, 5.0)
    bears_more: bool = False
    """Whether the outcome stays the same if a second fault strikes before the first is mended."""
    dag_id: str = TRAINING_DAG
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


_CANCELLED = MappingProxyType({"cancelled": (1,)})
_WORKER = ("the task's process", "the whole worker")
_SIGNALS = ("SIGKILL", "SIGTERM")
_WAITING = (points.QUEUED, points.TRAINING)
_TWICE = MappingProxyType({"valid": (2,)})

_AIRFLOW = (
    Drill("worker killed before sbatch", (points.BEFORE_SBATCH,), faults.kill_worker, ways=_WORKER),
    Drill(
        "worker killed between sbatch and persisting the id",
        (points.AFTER_SBATCH,),
        faults.kill_worker,
        ways=_WORKER,
    ),
    Drill("worker killed during collection", (points.COLLECTING,), faults.kill_worker, ways=_WORKER),
    Drill("worker killed while publishing", (points.PUBLISHING,), faults.kill_worker, ways=_WORKER),
    Drill("triggerer killed", _WAITING, faults.end_triggerer, ways=_SIGNALS),
    Drill(
        "scheduler restarted",
        (points.BEFORE_SBATCH, points.AFTER_SBATCH, points.TRAINING, points.COLLECTING),
        faults.end_scheduler,
        ways=_SIGNALS,
    ),
)
_PEOPLE = (
    Drill("marked failed while deferred", _WAITING, faults.mark_failed, _CANCELLED),
    Drill(
        "marked failed while submitting", (points.AFTER_RELEASE_IT_TRAINS,), faults.mark_failed, _CANCELLED
    ),
    Drill("submit cleared while deferred", _WAITING, faults.clear_submit, _TWICE),
    Drill("wait cleared while deferred", _WAITING, faults.clear_wait),
    Drill(
        "one cell cleared among many",
        (points.TRAINING,),
        faults.clear_last_cell,
        {"valid": (3,)},
        ways=("it trains", "it has failed", "it has finished"),
        params=MappingProxyType({"repeats": 2}),
    ),
    Drill("deleted while deferred", _WAITING, faults.delete, _CANCELLED),
    Drill(
        "held from outside", (points.QUEUED,), faults.hold, mend=faults.release, seen=faults.is_told_of_hold
    ),
    Drill(
        "suspended from outside",
        (points.TRAINING,),
        faults.suspend_job,
        mend=faults.resume_job,
        seen=faults.is_told_of_suspension,
    ),
    Drill("cancelled from outside", _WAITING, faults.cancel_outside, _CANCELLED),
    Drill("two runs ask for the same cell", (points.AT_ONCE,), faults.start_another, _TWICE),
    Drill(
        "two sweeps ask for the same cell", (points.AT_ONCE,), faults.start_another, _TWICE, dag_id=SWEEP_DAG
    ),
)
_SWEEPS = (
    Drill(
        "sweep file broken in flight",
        (points.TRAINING,),
        faults.change_sweep_file,
        mend=faults.restore_sweep_file,
        ways=("broken", "edited"),
        lasts_s=(5, 10),
        dag_id=SWEEP_DAG,
    ),
    Drill(
        "sweep stopped",
        (points.TRAINING,),
        faults.stop_sweep,
        _CANCELLED,
        ways=("marked failed", "its cell marked failed", "steptime sweep cancel"),
        dag_id=SWEEP_DAG,
    ),
)
_PREEMPTIBLE = MappingProxyType({"partition": "preempt-cancel"})
_SSH = (
    Drill("sbatch's reply lost", (points.AFTER_SBATCH, points.AFTER_SBATCH_FAILED), faults.lose_reply),
    Drill(
        "sshd refusing",
        (points.BEFORE_SBATCH, points.TRAINING, points.COLLECTING),
        faults.refuse_logins,
        mend=faults.take_logins,
        ways=("no sshd", "the login is refused"),
        lasts_s=(2, 40),
    ),
    Drill(
        "login node away past the limit",
        (points.TRAINING,),
        faults.refuse_logins,
        mend=faults.take_logins,
        seen=faults.has_trained_meanwhile,
        lasts_s=(50, 70),
    ),
    Drill(
        "login node away past its patience, and the wait cleared",
        (points.TRAINING,),
        faults.refuse_logins,
        mend=faults.take_logins_and_clear,
        seen=faults.has_been_given_up,
        params={"cluster": IMPATIENT},
    ),
    Drill(
        "sshd hanging",
        (points.BEFORE_SBATCH, points.TRAINING, points.COLLECTING),
        faults.hang_logins,
        mend=faults.answer_logins,
        lasts_s=(2, 40),
    ),
)
_SLURM = (
    Drill(
        "slurmctld down",
        (points.BEFORE_SBATCH, points.QUEUED, points.TRAINING),
        faults.stop_controller,
        mend=faults.start_controller,
        ways=_SIGNALS,
        lasts_s=(2, 60),
        bears_more=True,
    ),
    Drill(
        "slurmdbd down",
        (points.TRAINING,),
        faults.stop_accounting,
        mend=faults.start_accounting,
        ways=_SIGNALS,
        lasts_s=(5, 20),
        bears_more=True,
    ),
    Drill(
        "slurmdbd lagging",
        (points.TRAINING,),
        faults.suspend_accounting,
        mend=faults.resume_accounting,
        lasts_s=(5, 20),
        bears_more=True,
    ),
    Drill(
        "stale accounting",
        (points.TRAINING,),
        faults.lock_accounting,
        mend=faults.unlock_accounting,
        seen=faults.has_concluded,
    ),
    Drill(
        "node killed", (points.TRAINING,), faults.kill_node, _TWICE, mend=faults.start_node, lasts_s=(1, 40)
    ),
    Drill(
        "preempted", (points.TRAINING,), faults.preempt, _TWICE, mend=faults.give_back, params=_PREEMPTIBLE
    ),
    Drill(
        "worker killed while it resubmits",
        (points.TRAINING,),
        faults.kill_worker_of_resubmission,
        _TWICE,
        mend=faults.give_back,
        ways=_WORKER,
        params=_PREEMPTIBLE,
    ),
)
_FILES = (
    Drill(
        "unreadable log",
        (points.TRAINING,),
        faults.block_log,
        mend=faults.unblock_log,
        seen=faults.has_been_waited_for,
        ways=("reads hang", "reads fail"),
        lasts_s=(1, 10),
    ),
    Drill(
        "store away while a result is stored",
        (points.TRAINING,),
        faults.take_store_away,
        mend=faults.give_store_back,
        seen=faults.store_is_waited_for,
        lasts_s=(0.5, 25),
    ),
)
_ADMINISTRATORS = (
    Drill("DAG deleted while deferred", _WAITING, faults.delete_dag, _CANCELLED, mend=faults.restore_dag),
    Drill(
        "connection edited in mid-wait",
        _WAITING,
        faults.edit_connection,
        mend=faults.restore_connection,
        seen=faults.is_told_of_silence,
        ways=("another port", "another user"),
    ),
    Drill(
        "slurmctld restarted without its state",
        _WAITING,
        faults.lose_controllers_state,
        _CANCELLED,
        mend=faults.start_controller,
    ),
)
_ANYWHERE = (
    points.BEFORE_SBATCH,
    points.AFTER_SBATCH,
    points.QUEUED,
    points.TRAINING,
    points.COLLECTING,
    points.PUBLISHING,
)
_COMMANDS = ("steptime up", "steptime down, then up")
_KILLED = (
    Drill(
        "api-server killed",
        _ANYWHERE,
        faults.kill_api_server,
        mend=faults.await_api_server,
        ways=("once", "again and again"),
        bears_more=True,
    ),
    Drill(
        "supervisor killed",
        _ANYWHERE,
        faults.kill_supervisor,
        mend=faults.start_again,
        ways=_COMMANDS,
        lasts_s=(0.5, 20.0),
        bears_more=True,
    ),
    # Nothing is left for a second fault to affect.
    Drill(
        "all of Airflow killed",
        _ANYWHERE,
        faults.kill_all_of_airflow,
        mend=faults.start_again,
        ways=_COMMANDS,
    ),
)
_OF_TRIAL = partial(
    Drill,
    permitted=MappingProxyType({"valid": (4,)}),  # two variants in two rounds
    bears_more=True,
    dag_id=TRIAL_DAG,
    params=MappingProxyType({"trial": "drilled"}),
)
_TRIALS = (
    _OF_TRIAL("worker of a trial killed", (points.IN_SECOND_ROUND,), faults.kill_worker, ways=_WORKER),
    _OF_TRIAL(
        "triggerer of a trial killed",
        (points.TRAINING, points.IN_SECOND_ROUND),
        faults.end_triggerer,
        ways=_SIGNALS,
    ),
    _OF_TRIAL(
        "scheduler of a trial killed",
        (points.IN_SECOND_ROUND, points.TRAINING),
        faults.end_scheduler,
        ways=_SIGNALS,
    ),
)
# The others have several outcomes, or end the run at once, so that a second fault would affect nothing.
_BEARING_MORE = [replace(drill, bears_more=True) for drill in _AIRFLOW]
_ALL = (*_BEARING_MORE, *_PEOPLE, *_SWEEPS, *_SSH, *_SLURM, *_FILES, *_ADMINISTRATORS)
ALSO = MappingProxyType(
    {
        "the connections dropped": faults.drop_connections,
        "the triggerer killed": faults.kill_triggerer,
        "the scheduler killed": faults.kill_scheduler,
    }
)
DRILLS = MappingProxyType({drill.name: drill for drill in _ALL})
SERVICE_DRILLS = MappingProxyType({drill.name: drill for drill in _KILLED})
TRIAL_DRILLS = MappingProxyType({drill.name: drill for drill in _TRIALS})
SERVICE_ALSO = MappingProxyType({"the api-server killed": faults.kill_api_server_once, **ALSO})
POINTS = MappingProxyType(
    {point.name: point for drill in (*_ALL, *_KILLED, *_TRIALS) for point in drill.points}
)
