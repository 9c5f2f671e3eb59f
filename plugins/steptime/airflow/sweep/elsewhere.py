"""Where fresh runs of a cell are sent: to other nodes than those of the suspected run, if possible.

Otherwise a slow node that the cluster assigns again would confirm itself.
"""

import asyncio
from typing import NamedTuple

from steptime.airflow.connections import open_cluster
from steptime.clusters.config import ClusterConfig, load_cluster
from steptime.errors import SystemFailure, UserError, shown
from steptime.recipes.models import Run
from steptime.recipes.node_lists import expand_nodes
from steptime.recipes.sweep_planning import Cell, runs_of

_ANSWERS_WITHIN_S = 60


class Elsewhere(NamedTuple):
    """Which nodes fresh runs of a cell are to avoid."""

    cluster_options: dict[str, bool | int | str] | None
    """The options of their requests for the kind of cluster; None for those of the cell."""
    words: str
    """The same as the end of a sentence about them."""


def elsewhere(cell: Cell, nodes: str) -> Elsewhere:
    """Keep the runs of a cell off `nodes`, a list such as `node[1-4]`, if the cluster has enough others.

    The cluster is asked. If it does not answer, the runs may come to any node: that they run matters more
    than on which nodes.
    """
    if not nodes:
        return Elsewhere(None, "on any nodes, as it is not known on which it ran")
    config = load_cluster(cell.request.cluster)
    options: dict[str, bool | int | str] | None = None
    for run in runs_of(cell):
        apart = config.avoiding(run, expand_nodes(nodes))
        if config.placement_test(run) is None:
            return Elsewhere(None, f"on any nodes, as cluster {config.name} takes no nodes to leave out")
        if apart == run:
            return Elsewhere(None, f"on {nodes} again, which its request names")
        if refusal := asyncio.run(_refusal(config, apart)):
            return Elsewhere(None, f"on any nodes, as there are none without {nodes}: {refusal}")
        options = apart.cluster_options
    return Elsewhere(options, f"without {nodes}")


async def _refusal(config: ClusterConfig, run: Run) -> str:
    """Why a cluster has no nodes for the run, in its own words; empty if it has."""
    try:
        async with open_cluster(config) as cluster:
            done = await cluster.run(config.placement_test(run) or (), timeout_s=_ANSWERS_WITHIN_S)
    except (UserError, SystemFailure) as error:
        return shown(str(error), at_most=300)
    if done.exit_code == 0:
        return ""
    return shown(done.stderr.strip() or f"exit code {done.exit_code}", at_most=300)
