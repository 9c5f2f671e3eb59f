"""Bind ranks to NUMA nodes and cores, as the launchers of the recipe documents do.

Like theirs, each rank binds itself inside its container.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import PositiveInt

from steptime.recipes.models import Run

NumaBinding = Literal["auto", "none"] | PositiveInt
"""`auto`: as published; `none`: never; a number: how many neighbouring local ranks share a NUMA node here."""


class Binding(NamedTuple):
    """What the ranks of a run are bound to."""

    ranks_per_numa_node: int
    priority_cores: bool = False
    """Also to two cores of the rank's own, as upstream does on B300: 16 and 17 for local rank 1."""


_NODE = 'node=$((SLURM_LOCALID / $1)); shift; bind=("--cpunodebind=$node" "--membind=$node"); '
_PRIORITY_CORES = 'bind+=("--physcpubind=$((SLURM_LOCALID * 16)),$((SLURM_LOCALID * 16 + 1))"); '
_RUN = (
    # Tried first: a rank that cannot be bound still trains, and logs why it is not bound.
    'if said=$(numactl "${bind[@]}" true 2>&1); then '
    'STEPTIME_NUMA_NODE=$node exec numactl "${bind[@]}" "$@"; fi; '
    'read -r why <<<"$said"; '
    'echo "steptime: rank $SLURM_PROCID is not bound to NUMA node $node: $why" >&2; exec "$@"'
)
"""The command is passed as arguments, never as text: ranks per NUMA node, then what to run. The trainer
counts the bound ranks by the variable."""


def binding_of(run: Run, numa_binding: NumaBinding) -> Binding | None:
    """Return what a run's ranks are bound to on a cluster, or None. A site's own number binds no cores."""
    if isinstance(numa_binding, int):
        return Binding(numa_binding)
    published = run.performance.ranks_per_numa_node
    if numa_binding == "none" or published is None:
        return None
    return Binding(published, run.performance.priority_cores)


def bound(command: Sequence[str], binding: Binding | None) -> tuple[str, ...]:
    """Return the command with its rank bound; unchanged if `binding` is None."""
    if binding is None:
        return tuple(command)
    text = f"{_NODE}{_PRIORITY_CORES if binding.priority_cores else ''}{_RUN}"
    return ("bash", "-c", text, "numactl", str(binding.ranks_per_numa_node), *command)
