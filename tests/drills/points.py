"""The points of a run at which drills strike: each is observed, and most hold the run there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import NullPool, create_engine, text

from drills.scene import PARSE, PUBLISH, SUBMIT, VALIDATE, WAIT
from steptime.mini_slurm import processes

if TYPE_CHECKING:
    from drills.scene import Scene

Act = Callable[["Scene"], object]


@dataclass(frozen=True)
class Point:
    """A moment in the life of a run."""

    name: str
    task: str
    """The task that works at this moment."""
    prepare: Act
    """Called before the DAG run is triggered."""
    reached: Callable[["Scene"], bool]
    go_on: Act
    """Lets the run go on from this moment."""
    cell: int = 0
    """The map index of that task."""


def _nothing(scene): ...


def _gate_before_sbatch(scene):
    gate = scene.site.gate("sbatch")
    gate.close()
    scene.wrap("sbatch", f'{gate.wait}; exec $real "$@"')


def _gate_before_third_sbatch(scene):
    gate = scene.site.gate("sbatch")
    gate.close()
    first = f'for turn in 1 2; do mkdir "{gate.folder}/turn$turn" 2>/dev/null && exec $real "$@"; done'
    scene.wrap("sbatch", f'{first}; {gate.wait}; exec $real "$@"')


def _gate_after_sbatch(scene):
    gate = scene.site.gate("sbatch")
    gate.close()
    scene.wrap("sbatch", f'$real "$@"; result=$?; {gate.wait}; exit $result')


def _gate_after_release(scene):
    gate = scene.site.gate("sbatch")
    gate.close()
    scene.wrap(
        "scontrol", f'$real "$@"; result=$?; if [ "$1" = release ]; then {gate.wait}; fi; exit $result'
    )


def _gate_after_sbatch_failed(scene):
    gate = scene.site.gate("sbatch")
    gate.close()
    said = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    scene.wrap("sbatch", f'$real "$@" >/dev/null; {gate.wait}; echo "{said}" >&2; exit 1')


def _open_sbatch(scene):
    scene.site.gate("sbatch").open()


def _stop_partition(scene):
    scene.site.slurm.command("scontrol", "update", "PartitionName=batch", "State=DOWN")


def _start_partition(scene):
    if "slurmctld" in processes.daemons(scene.site.slurm.layout):  # otherwise its mending starts it
        scene.site.slurm.command("scontrol", "update", "PartitionName=batch", "State=UP")


def _waits_in_queue(scene):
    return _is_waited_for(scene) and [job.state for job in scene.queue()] == ["PENDING"]


def _hold_training(scene):
    scene.training.close()


def _trains(scene):
    return scene.training.arrived >= len(scene.cells) and _is_waited_for(scene)


def _is_waited_for(scene):
    return all(scene.state(WAIT, cell) == "deferred" for cell in scene.cells)


def _let_train(scene):
    scene.training.open()


def _gate_second_look_at_the_end(scene):
    """Answer the first query about the job's end, and hold the next ones, which collect the log."""
    gate = scene.site.gate("squeue")
    gate.close()
    told = f"{gate.folder}/told"
    scene.wrap(
        "squeue",
        f"""out=$($real "$@") || exit
        case "$out" in *COMPLETED*) mkdir "{told}" 2>/dev/null || {{ {gate.wait}; }};; esac
        printf '%s\\n' "$out\"""",
    )


def _collects(scene):
    # Both `parse` and `end` ask how the job ended.
    return scene.site.gate("squeue").arrived >= 2 and scene.state(PARSE) == "running"


def _open_squeue(scene):
    scene.site.gate("squeue").open()


def _publishes(scene):
    if "lock" not in scene.kept:  # earlier tasks write too
        if scene.state(VALIDATE) != "success":
            return False
        scene.kept["lock"] = _lock_store(scene.site)
    if scene.state(PUBLISH) != "running":
        return False
    if scene.site.postgresql:
        # On the connection of the lock, which may use the table.
        waiting = scene.kept["lock"].execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
        return bool(waiting.scalar_one())
    store = str(scene.site.disk / "steptime.db")
    return any(store == file.path for process in scene.worker(PUBLISH) for file in process.open_files())


def _lock_store(site):
    """Begin a transaction for which whoever writes a run to the metrics store has to wait."""
    connection = create_engine(site.store_url, poolclass=NullPool).connect()
    if site.postgresql:
        connection.execute(text("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"))
    else:
        connection.connection.driver_connection.isolation_level = None
        connection.execute(text("BEGIN EXCLUSIVE"))
    return connection


def _unlock_store(scene):
    scene.kept.pop("lock").close()


BEFORE_SBATCH = Point(
    "before sbatch",
    SUBMIT,
    _gate_before_sbatch,
    lambda scene: scene.site.gate("sbatch").arrived > 0,
    _open_sbatch,
)
IN_SECOND_ROUND = replace(
    BEFORE_SBATCH,
    name="before sbatch of the second round of a trial of two",
    prepare=_gate_before_third_sbatch,
    cell=2,
)
AFTER_SBATCH = Point(
    "between sbatch and its reply",
    SUBMIT,
    _gate_after_sbatch,
    lambda scene: scene.site.gate("sbatch").arrived > 0,
    _open_sbatch,
)
AFTER_RELEASE_IT_TRAINS = Point(
    "between its release and the reply, while it trains",
    SUBMIT,
    lambda scene: (_gate_after_release(scene), _hold_training(scene)),
    lambda scene: scene.site.gate("sbatch").arrived > 0 and scene.training.arrived > 0,
    lambda scene: (_open_sbatch(scene), _let_train(scene)),
)
AFTER_SBATCH_FAILED = Point(
    "when sbatch fails though the job was taken",
    SUBMIT,
    _gate_after_sbatch_failed,
    lambda scene: scene.site.gate("sbatch").arrived > 0,
    _open_sbatch,
)
QUEUED = Point("while it queues", WAIT, _stop_partition, _waits_in_queue, _start_partition)
TRAINING = Point("while it trains", WAIT, _hold_training, _trains, _let_train)
COLLECTING = Point("while its log is collected", PARSE, _gate_second_look_at_the_end, _collects, _open_squeue)
PUBLISHING = Point("while it is published", PUBLISH, _nothing, _publishes, _unlock_store)
AT_ONCE = Point("at once", SUBMIT, _nothing, lambda scene: True, _nothing)
