"""Binding ranks to NUMA nodes, as the recipe documents' launchers do (NVIDIA/NeMo, `scripts/performance`).

Like theirs, it is done inside of the container, by each rank for itself.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import PositiveInt

from steptime.recipes.models import Run

NumaBinding = Literal["auto", "none"] | PositiveInt
"""`auto` as published, `none` at all, or how many neighbouring local ranks share a NUMA node here."""

_BIND = (
    "node=$((SLURM_LOCALID / $1)); shift; "
    'set -- "--cpunodebind=$node" "--membind=$node" "$@"; '
    # Tried first: a rank that cannot be bound trains all the same, and logs why.
    'if said=$(numactl "$1" "$2" true 2>&1); then STEPTIME_NUMA_NODE=$node exec numactl "$@"; fi; '
    'read -r why <<<"$said"; '
    'echo "steptime: rank $SLURM_PROCID is not bound to NUMA node $node: $why" >&2; '
    'shift 2; exec "$@"'
)
"""What is run comes as arguments, never as text: ranks per NUMA node, then the command. By the variable the
trainer counts the ranks that are bound."""


def ranks_per_numa_node(run: Run, binding: NumaBinding) -> int | None:
    """Return how many neighbouring local ranks of a run share a NUMA node here, or None if none is bound."""
    if binding == "auto":
        return run.performance.ranks_per_numa_node
    return None if binding == "none" else binding


def bound(command: Sequence[str], ranks: int | None) -> tuple[str, ...]:
    """Bind the command to cores and memory of its rank's NUMA node; unchanged if `ranks` is None."""
    return tuple(command) if ranks is None else ("bash", "-c", _BIND, "numactl", str(ranks), *command)
