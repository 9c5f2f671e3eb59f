"""On which nodes a change was suspected, and on which the fresh runs ran that decided it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from steptime.judging.detection import FRESH_RUNS, Standing
from steptime.judging.series import SeriesRun
from steptime.recipes.node_lists import expand_nodes, fold_nodes

_NAMED = 8
"""Nodes that a sentence has place for; the columns have all."""


@dataclass(frozen=True)
class Placement:
    """Lists of nodes, `node[1-4]`; empty if it is not known on which a run was."""

    suspected: str
    """Of the run that raised the suspicion."""
    fresh: tuple[str, ...] = ()
    """Of each fresh run that there is."""

    @classmethod
    def from_standing(cls, runs: Sequence[SeriesRun], place: int, standing: Standing) -> Self | None:
        """After the run at that place of its series; None if nothing is suspected, nor was until then."""
        involved = 1 + FRESH_RUNS if standing.state == "dismissed" else len(standing.since)
        if not involved:
            return None
        first = place + 1 - involved
        suspected, *fresh = (_nodes(run) for run in runs[first : min(place, first + FRESH_RUNS) + 1])
        return cls(suspected, tuple(fresh))

    @classmethod
    def stored(cls, rests_on: Mapping[str, Any]) -> Self | None:
        """Read it from `rests_on` of a stored judgement; None if nothing is or was suspected."""
        kept = rests_on.get("nodes")
        return cls(kept["suspected"], tuple(kept["fresh"])) if kept else None

    @property
    def as_stored(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)

    @property
    def fresh_nodes(self) -> str:
        """Those of all fresh runs together."""
        return fold_nodes(_names(self.fresh))

    @property
    def words(self) -> str:
        """Where the fresh runs ran, ` on other nodes (node[2-3])`; empty if that is not known of all."""
        before, after = _names([self.suspected]), _names(self.fresh)
        if not (before and all(self.fresh) and after):
            return ""
        plural = len(after) > 1
        if not before & after:
            where = "on other nodes" if plural else "on another node"
        else:
            where = f"{'' if after <= before else 'partly '}on the same node{'s' if plural else ''}"
        return f" {where} ({self.fresh_nodes})" if len(after) <= _NAMED else f" {where}"


def _nodes(run: SeriesRun) -> str:
    return fold_nodes(filter(None, (run.row["nodes"] or "").split(", ")))


def _names(lists: Iterable[str]) -> set[str]:
    return {name for one in lists for name in expand_nodes(one)}
