"""The nodes of a run that raised a suspicion, and of the confirmation runs that confirmed or dismissed it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from steptime.judging.detection import CONFIRMATION_RUNS, SeriesState
from steptime.judging.series import SeriesRun
from steptime.recipes.node_lists import expand_nodes, fold_nodes
from steptime.store.run_records import split_nodes

_NAMED = 8
"""Most nodes that a sentence names; the columns have all."""


@dataclass(frozen=True)
class Placement:
    """The nodes of a suspected run, and of the confirmation runs that confirm or dismiss the suspicion.

    Each is a Slurm node list such as `node[1-4]`; empty if unknown.
    """

    suspected: str
    """Nodes of the run that raised the suspicion."""
    confirmations: tuple[str, ...] = ()
    """Nodes of each confirmation run so far."""

    @classmethod
    def from_series_state(
        cls, runs: Sequence[SeriesRun], index: int, series_state: SeriesState
    ) -> Self | None:
        """Return the nodes of the suspected run and its confirmation runs up to index `index` of `runs`.

        None if nothing is or was suspected.
        """
        involved = 1 + CONFIRMATION_RUNS if series_state.state == "dismissed" else len(series_state.since)
        if not involved:
            return None
        first = index + 1 - involved
        suspected, *confirmations = (
            _nodes(run) for run in runs[first : min(index, first + CONFIRMATION_RUNS) + 1]
        )
        return cls(suspected, tuple(confirmations))

    @classmethod
    def stored(cls, rests_on: Mapping[str, Any]) -> Self | None:
        """Read a placement from a judgement's column `rests_on`; None if nothing is or was suspected."""
        kept = rests_on.get("nodes")
        return cls(kept["suspected"], tuple(kept["confirmations"])) if kept else None

    @property
    def as_stored(self) -> dict[str, Any]:
        """The placement as JSON, for the column `rests_on` of the table `judgements`."""
        return asdict(self)

    @property
    def confirmation_nodes(self) -> str:
        """Nodes, as in `node[1-4]`, of all confirmation runs: those that confirm or dismiss the suspicion."""
        return fold_nodes(_names(self.confirmations))

    @property
    def words(self) -> str:
        """Where the confirmation runs ran, compared with the suspected one; the end of a sentence, or empty.

        ` on other nodes (node[2-3])`, ` on the same node (node1)` or ` partly on the same nodes (…)`.
        """
        before, after = _names([self.suspected]), _names(self.confirmations)
        if not (before and all(self.confirmations) and after):
            return ""
        plural = len(after) > 1
        if not before & after:
            where = "on other nodes" if plural else "on another node"
        else:
            where = f"{'' if after <= before else 'partly '}on the same node{'s' if plural else ''}"
        return f" {where} ({self.confirmation_nodes})" if len(after) <= _NAMED else f" {where}"


def _nodes(run: SeriesRun) -> str:
    return fold_nodes(split_nodes(run.row["nodes"]))


def _names(lists: Iterable[str]) -> set[str]:
    return {name for names in lists for name in expand_nodes(names)}
