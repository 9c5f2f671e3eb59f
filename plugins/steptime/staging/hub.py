"""Check that the cache of the Hugging Face hub on a cluster has what a run needs, before it is submitted."""

import re
from pathlib import PurePosixPath

from steptime.clusters.base import Cluster
from steptime.clusters.config import ClusterConfig
from steptime.clusters.hub import fetch_command, hub_cache
from steptime.errors import UserError
from steptime.recipes.megatron_bridge import hub_files
from steptime.recipes.models import Run

_COMMIT = re.compile(rb"[0-9a-f]{40}\s*")


async def require_hub_files(cluster: Cluster, config: ClusterConfig, run: Run) -> None:
    """Raise UserError if the cache on the cluster lacks a file of the hub that the run needs."""
    cache = hub_cache(run, config.environment, config.root)
    if cache is None:
        return
    for repository, names in hub_files(run.recipe).items():
        missing = await _missing(cluster, PurePosixPath(cache), repository, names)
        if missing is not None:
            raise UserError(
                f"{run.label} needs {missing} of {repository} from the Hugging Face hub, and {cache} on "
                f"cluster {config.name} does not have it. On a machine that reaches the hub (after 'hf auth "
                f"login' if the repository is gated) run: {fetch_command(repository, cache)} Then copy the "
                "folder to the cluster if that is another machine."
            )


async def _missing(cluster: Cluster, cache: PurePosixPath, repository: str, names: list[str]) -> str | None:
    """The first file that the cache lacks in the repository's main revision; None if all are there."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    commit = await cluster.read(str(folder / "refs" / "main"), limit=64)
    for name in names:
        path = folder / "snapshots" / commit.decode(errors="replace").strip() / name
        if not _COMMIT.fullmatch(commit) or not await cluster.read(str(path), limit=1):
            return name
    return None
