"""Slurm's commands on a login node (squeue, sacct, scancel, sinfo), limited to this user's jobs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from steptime.clusters.base import CommandResult
from steptime.clusters.slurm.job_records import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    JobRecord,
    group_by_name,
    read_records,
)
from steptime.errors import OutOfReach, SystemFailure, UserError, one_line
from steptime.frozen import Frozen

_TIMEOUT_S = 60
"""Time limit of a command: Slurm's own commands give up after about 10 s if their daemon does not answer."""
_NOT_FOUND = 127
"""Exit code of a command that does not exist."""
_HAS_ENDED = ("Invalid job id specified", "Job/step already completing or completed")
"""Messages of scancel about a job that ended after squeue was asked."""
_HISTORY = "now-60days"
"""How far back sacct looks: without a time, it shows only what began today."""
_LIMITS = ("MaxJobs", "MaxSubmitJobs", "MaxTRES", "MaxWall", "GrpTRES", "GrpJobs", "GrpSubmitJobs")
"""Limits of an association, by the names of sacctmgr."""
_NAMES_AT_ONCE = 400
"""Names per command: a command line has at most 128 KiB, and a job's name at most 200 characters."""


class Partition(Frozen):
    """A line of sinfo: a group of identical nodes in a partition."""

    name: str
    is_default: bool
    is_up: bool
    state: str
    """Slurm's state of the nodes, such as `idle` or `drained*`."""
    nodes: int
    gres: str
    """GRES of each node, such as `gpu:h100:8(S:0-1)`."""

    @property
    def is_usable(self) -> bool:
        """Whether jobs can run on these nodes, now or later."""
        return not self.state.startswith(("down", "drain", "fail", "inval")) and not self.state.endswith("*")


class Association(Frozen):
    """A user's entry in the accounting: an account, with the limits that are set there."""

    account: str
    limits: dict[str, str]


class AccountingUnavailable(OutOfReach):
    """Slurm's accounting (sacct, sacctmgr) does not answer."""


class SlurmCommands:
    """Runs Slurm's commands for the jobs of one cluster whose folders are below `root`."""

    def __init__(self, run: Callable[..., Awaitable[CommandResult]], *, cluster: str, root: str) -> None:
        self._run = run
        self._cluster = cluster
        self._root = root
        self.has_accounting = True
        """Whether the cluster has accounting; True until sacct says that there is none."""

    async def squeue(self, names: Sequence[str]) -> dict[str, list[JobRecord]]:
        """Return the jobs that squeue shows with these names, by name: live, or ended within MinJobAge.

        Raises OutOfReach if Slurm does not answer.
        """
        options = ["--me", "--states=all", "--noheader", f"--Format={SQUEUE_FORMAT}"]
        if not names:
            return {}
        if len(names) <= _NAMES_AT_ONCE:
            options.append(f"--name={','.join(names)}")
        try:
            done = await self._slurm(["squeue", *options])
        except OutOfReach:  # or a kind of it, such as LoginRefused, which must stay one
            raise
        except SystemFailure as failure:  # it changes nothing, and fails only if the controller is away
            raise OutOfReach(str(failure)) from None
        # In a thread: a thousand lines take longer than the event loop may be held up.
        return await asyncio.to_thread(lambda: self.ours(read_records(done.stdout), names))

    async def sacct(
        self, option: str, values: Sequence[str], names: Sequence[str]
    ) -> dict[str, list[JobRecord]]:
        """Return the jobs that sacct shows with these names, by name; none if Slurm has no accounting.

        `option` and `values` select them: `--name` with names, or `--jobs` with ids. Raises
        AccountingUnavailable if sacct does not answer.
        """
        records: list[JobRecord] = []
        options = ["--duplicates", "--allocations", "--noheader", "--parsable2"]
        options += [f"--starttime={_HISTORY}", f"--format={SACCT_FORMAT}"]
        for first in range(0, len(values) if self.has_accounting else 0, _NAMES_AT_ONCE):
            selected = ",".join(values[first : first + _NAMES_AT_ONCE])
            try:
                done = await self._slurm(["sacct", *options, f"{option}={selected}"])
            except (SystemFailure, UserError) as error:
                if "accounting storage is disabled" not in str(error):
                    raise AccountingUnavailable(str(error)) from None
                self.has_accounting = False
                break
            records += read_records(done.stdout)
        return self.ours(records, names)

    async def scancel(self, name: str, ids: Sequence[str]) -> None:
        """Cancel jobs by id and name, so that another job that got a reused id is never cancelled.

        A job that has ended already is no error. Raises SystemFailure if Slurm refuses for another reason.
        """
        if ids:
            await self._slurm(["scancel", f"--name={name}", *ids], harmless=_HAS_ENDED)

    async def release_never_released(self, ids: Sequence[str]) -> None:
        """Release those of the held jobs `ids` that have never been released. Raises SystemFailure.

        They have no AccrueTime: Slurm sets it at a job's first release, and keeps it if the job is held
        later.
        """
        shown_by = ["squeue", "--noheader", f"--jobs={','.join(ids)}", "--Format=JobID:|,AccrueTime:|"]
        rows = [line.split("|") for line in (await self._slurm(shown_by)).stdout.splitlines()]
        if never_released := [row[0] for row in rows if row[0] in ids and row[1:] and not row[1].isdecimal()]:
            await self._slurm(["scontrol", "release", *never_released])

    async def unusable_nodes(
        self, nodes: Sequence[str], states: Sequence[str] = ("down", "drain", "fail")
    ) -> dict[str, str]:
        """Return those of the nodes that are in one of sinfo's `states`; by default those that get no jobs.

        The values are a node's state and the administrator's reason, as in `drained (bad DIMM)`. Raises
        SystemFailure.
        """
        wanted = [f"--states={','.join(states)}", f"--nodes={','.join(nodes)}"]
        done = await self._slurm(["sinfo", "--Node", "--noheader", "--format=%N|%T|%E", *wanted])
        rows = [line.strip().split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2]
        return {name: f"{state} ({reason})" for name, state, reason in sorted(rows) if name in nodes}

    async def partitions(self) -> list[Partition]:
        """Return sinfo's lines: for each partition, its nodes grouped by state and GPUs.

        Raises SystemFailure if sinfo fails, UserError if the login node has none.
        """
        done = await self._slurm(["sinfo", "--noheader", "--format=%P|%a|%T|%D|%G"])
        rows = [line.strip().split("|") for line in done.stdout.splitlines() if line.count("|") == 4]
        return [
            Partition(
                name=name.rstrip("*"),
                is_default=name.endswith("*"),
                is_up=up == "up",
                state=state,
                nodes=int(nodes),
                gres=gres,
            )
            for name, up, state, nodes, gres in rows
            if nodes.isdecimal()
        ]

    async def associations(self, user: str) -> list[Association]:
        """Return the accounts and limits of a user. Raises AccountingUnavailable."""
        query = ["show", "assoc", f"user={user}", f"format=Account,{','.join(_LIMITS)}"]
        try:
            done = await self._slurm(["sacctmgr", "--noheader", "--parsable2", "--readonly", *query])
        except (SystemFailure, UserError) as error:
            raise AccountingUnavailable(str(error)) from None
        rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == len(_LIMITS)]
        return [
            Association(
                account=account,
                limits={name: value for name, value in zip(_LIMITS, values, strict=True) if value},
            )
            for account, *values in rows
        ]

    def ours(self, records: Iterable[JobRecord], names: Sequence[str]) -> dict[str, list[JobRecord]]:
        """Return the records with one of these names and a folder below `root`, grouped by name."""
        wanted = set(names)
        return group_by_name(
            record
            for record in records
            if record.name in wanted and record.directory.startswith(f"{self._root}/")
        )

    async def _slurm(self, argv: Sequence[str], *, harmless: tuple[str, ...] = ()) -> CommandResult:
        """Run a Slurm command. Raises SystemFailure with the command's own message if it fails.

        An error message that ends with one of `harmless` is ignored. Raises UserError if the command is
        missing.
        """
        done = await self._run(argv, timeout_s=_TIMEOUT_S)
        if done.exit_code == _NOT_FOUND:
            raise UserError(
                f"the login node of cluster {self._cluster} has no {argv[0]}: add Slurm's commands to the "
                "PATH of ssh logins."
            )
        errors = [line for line in done.stderr.split("\n") if not (harmless and line.endswith(harmless))]
        if done.exit_code and (any(errors) or not harmless):
            message = "; ".join(errors).strip("; ")
            raise SystemFailure(f"{argv[0]} failed on {self._cluster}: {one_line(message, at_most=500)}")
        return done
