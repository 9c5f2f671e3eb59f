"""The checks of `steptime cluster check` for a Slurm cluster."""

import re
import time
from collections.abc import Awaitable, Callable
from functools import partial

from steptime.clusters.base import CommandResult
from steptime.clusters.checks import CheckFailedError, ClusterCheck, NotApplicableError, clock_difference
from steptime.clusters.slurm.commands import Partition, SlurmCommands
from steptime.clusters.slurm.config import SlurmConfig
from steptime.recipes.gpus import load_gpu_type

_CLOCKS_APART_S = 60.0

Command = Callable[..., Awaitable[CommandResult]]


def slurm_checks(
    config: SlurmConfig, run: Command, slurm: SlurmCommands, clock: Callable[[], Awaitable[float]]
) -> tuple[ClusterCheck, ...]:
    """Return the checks of a Slurm cluster, given its commands on the login node and its clock."""
    return (
        ClusterCheck("login", partial(_login, config, run), is_required=True),
        ClusterCheck("Slurm", partial(_partition, config, slurm), is_required=True),
        ClusterCheck("GPUs", partial(_gpus, config, slurm)),
        ClusterCheck("accounting", partial(_accounting, slurm)),
        ClusterCheck("submit limits", partial(_limits, config, run, slurm)),
        ClusterCheck("clock", partial(_clock, clock)),
    )


async def _login(config: SlurmConfig, run: Command) -> str:
    done = await run(["sh", "-c", 'echo "$(id -un) on $(uname -n)"'], timeout_s=60)
    return f"{done.stdout.strip()}, by connection '{config.connection}'"


def _file(config: SlurmConfig) -> str:
    return f"config/clusters/{config.name}.yaml"


async def _used_partitions(config: SlurmConfig, slurm: SlurmCommands) -> list[Partition]:
    """Return sinfo's lines about the partitions in the cluster's file, else about Slurm's default one."""
    lines = await slurm.partitions()
    names = (
        config.partition.split(",") if config.partition else [line.name for line in lines if line.is_default]
    )
    return [line for line in lines if line.name in names]


async def _partition(config: SlurmConfig, slurm: SlurmCommands) -> str:
    used = await _used_partitions(config, slurm)
    shown = ", ".join(sorted({line.name for line in await slurm.partitions()})) or "none"
    if not used and config.partition is None:
        raise CheckFailedError(
            f"Slurm has no default partition, and the file sets no partition; partitions: {shown}",
            f"write partition: in {_file(config)}",
        )
    missing = set((config.partition or "").split(",")) - {"", *(line.name for line in used)}
    if missing:
        raise CheckFailedError(
            f"Slurm shows this login no partition '{', '.join(sorted(missing))}'; partitions: {shown}",
            f"change partition: in {_file(config)}",
        )
    usable = sum(line.nodes for line in used if line.is_up and line.is_usable)
    nodes = sum(line.nodes for line in used)
    names = ", ".join(dict.fromkeys(line.name for line in used))
    if not usable:
        states = ", ".join(sorted({line.state for line in used}))
        raise CheckFailedError(
            f"no node of partition {names} can be used now ({nodes} nodes: {states})",
            "ask the cluster's administrators ('sinfo -R' shows the reasons), or name another partition",
        )
    return f"partition {names}: {usable} of {nodes} nodes can be used"


async def _gpus(config: SlurmConfig, slurm: SlurmCommands) -> str:
    used = await _used_partitions(config, slurm)
    lists = {gpus for line in used if (gpus := parse_gres(line.gres))}
    if config.gpu_type == "cpu":
        raise NotApplicableError("gpu_type is cpu: jobs use no GPUs")
    if config.gpu_option == "none":
        raise NotApplicableError("gpu_option is none: Slurm gives whole nodes and counts no GPUs")
    if not lists:
        raise CheckFailedError(
            "the nodes of the partition have no GPUs in Slurm (GRES 'gpu')",
            f"name a partition with GPUs, or write gpu_option: none in {_file(config)} if the site has no "
            "GRES",
        )
    shown = ", ".join(sorted(f"{count} × {kind or 'gpu'}" for kind, count in lists))
    most = max(count for _, count in lists)
    if config.gpus_per_node is not None and config.gpus_per_node > most:
        raise CheckFailedError(
            f"gpus_per_node is {config.gpus_per_node}, but the nodes have {shown}",
            f"write gpus_per_node: {most} in {_file(config)}",
        )
    word = (load_gpu_type(config.gpu_type).product or config.gpu_type).lower()
    kinds = {kind for kind, _ in lists if kind}
    if not kinds:
        raise NotApplicableError(
            f"nodes have {shown}, and Slurm does not say of which type: with node_check in {_file(config)} "
            "each job checks it before the training"
        )
    if not any(word in kind.lower() for kind in kinds):
        raise CheckFailedError(
            f"gpu_type is {config.gpu_type}, but the nodes have {shown}",
            f"change gpu_type (a key of config/gpus.yaml) or partition in {_file(config)}",
        )
    return f"{shown} a node, as expected ({config.gpu_type})"


def parse_gres(gres: str) -> tuple[str, int] | None:
    """Parse a node's GRES, `gpu:h100:8(S:0-1)`: return the type (empty if Slurm has none) and number of GPUs.

    >>> parse_gres("gpu:h100:8(S:0-1),nvme:1"), parse_gres("gpu:8"), parse_gres("(null)")
    (('h100', 8), ('', 8), None)
    """
    match = re.search(r"(?:^|,)gpu(?::(?P<kind>[A-Za-z][^:,(]*))?:(?P<count>\d+)", gres)
    return (match["kind"] or "", int(match["count"])) if match else None


async def _accounting(slurm: SlurmCommands) -> str:
    await slurm.sacct("--name", ["steptime-check"], [])
    if not slurm.has_accounting:
        raise NotApplicableError(
            "this Slurm has no accounting: how a job ended is read from a file that its script writes"
        )
    return "sacct answers"


async def _limits(config: SlurmConfig, run: Command, slurm: SlurmCommands) -> str:
    if not slurm.has_accounting:
        raise NotApplicableError("limits are in the accounting, which this Slurm does not have")
    user = (await run(["id", "-un"], timeout_s=60)).stdout.strip()
    associations = await slurm.associations(user)
    if not associations:
        raise NotApplicableError(f"the accounting has no entry for user {user}, so it sets no limits")
    account = config.default_account
    accounts = sorted({association.account for association in associations})
    if account is not None and account not in accounts:
        raise CheckFailedError(
            f"user {user} has no account '{account}'; accounts: {', '.join(accounts)}",
            f"change account: in {_file(config)}, or ask for that account",
        )
    limits = [
        f"account {association.account}: "
        + ", ".join(f"{name} {value}" for name, value in association.limits.items())
        for association in associations
        if account in (None, association.account) and association.limits
    ]
    return "; ".join(dict.fromkeys(limits)) or f"none for user {user} ({', '.join(accounts)})"


async def _clock(clock: Callable[[], Awaitable[float]]) -> str:
    before = time.time()
    cluster_time = await clock()
    return clock_difference(cluster_time, (before + time.time()) / 2, at_most_s=_CLOCKS_APART_S)
