"""Read from a Slurm cluster's login node what is needed to write the cluster's file."""

from steptime.clusters.connections import Connections
from steptime.clusters.slurm.checks import Command, parse_gres
from steptime.clusters.slurm.commands import AccountingUnavailable, Partition, SlurmCommands
from steptime.clusters.slurm.config import SlurmConfig
from steptime.clusters.slurm.ssh import LoginNode
from steptime.frozen import Frozen
from steptime.plug_points import CONTAINERS
from steptime.recipes.gpus import gpu_types

_FOLDERS = r"""
for folder in "$SCRATCH" "$WORK" "$PROJECT" "$HOME"; do
    [ -z "$folder" ] || [ ! -d "$folder" ] || [ ! -w "$folder" ] || printf '%s\n' "$folder"
done
"""
_PYTHONS = r"""
for python in python3.11 python3.12 python3.13 python3; do
    "$python" -c 'import hashlib; hashlib.file_digest' 2>/dev/null && echo "$python" || :
done
"""


class Survey(Frozen):
    """What a login node shows about its cluster."""

    where: str
    """User and login node."""
    partitions: tuple[Partition, ...]
    accounts: tuple[str, ...]
    """Accounts of the user; empty if there is no accounting or it does not answer."""
    containers: tuple[str, ...]
    """Container programs that work on the login node, the preferred one first."""
    folders: tuple[str, ...]
    """Folders that the user may write to, the likeliest for `work_dir` first."""
    pythons: tuple[str, ...]
    """Commands that start a Python of 3.11 or newer."""

    @property
    def suggested_partition(self) -> Partition | None:
        """The default partition if it has GPUs, else one with GPUs, else the default; None without any."""
        return min(
            self.partitions,
            key=lambda partition: (
                parse_gres(partition.gres) is None,
                not partition.is_default,
                not partition.is_usable,
            ),
            default=None,
        )


def listed_gpu_type(partition: Partition) -> str | None:
    """Return the partition's GPU type as a key of config/gpus.yaml; `cpu` if it has no GPUs.

    None if Slurm names no type, or one that is not listed there.
    """
    gpus = parse_gres(partition.gres)
    if gpus is None:
        return "cpu"
    kind = gpus[0].lower()
    words = {
        (described.product or name).lower(): name for name, described in gpu_types().items() if described
    }
    fitting = [word for word in words if kind and word in kind]
    return words[max(fitting, key=len)] if fitting else None


async def _lines(run: Command, script: str) -> list[str]:
    return (await run(["sh", "-c", script], timeout_s=60)).stdout.splitlines()


async def survey(connection: str, connections: Connections) -> Survey:
    """Collect what the login node of a connection shows. Raises UserError or SystemFailure."""
    node = LoginNode(connection, connections)
    slurm = SlurmCommands(node.run, cluster=connection, root="")
    try:
        user, host = (await node.run(["sh", "-c", "echo $(id -un) $(uname -n)"], timeout_s=60)).stdout.split()
        try:
            accounts = tuple(
                dict.fromkeys(association.account for association in await slurm.associations(user))
            )
        except AccountingUnavailable:
            accounts = ()
        containers = []
        for name in SlurmConfig.containers():
            runtime = CONTAINERS.load(name)
            if runtime.probe:
                probed = await node.run(runtime.probe, timeout_s=60)
                if probed.exit_code == 0 and runtime.probe_prints in probed.stdout:
                    containers.append(name)
        return Survey(
            where=f"{user} on {host}",
            partitions=tuple(await slurm.partitions()),
            accounts=accounts,
            containers=tuple(containers),
            folders=tuple(dict.fromkeys(await _lines(node.run, _FOLDERS))),
            pythons=tuple(await _lines(node.run, _PYTHONS)),
        )
    finally:
        await node.close()
