"""A Slurm cluster, reached over ssh: sbatch, squeue, sacct and scancel on its login node.

A job is identified by its unique name, not by its id: a controller that lost its state assigns ids again.
Slurm accepts several jobs with one name, so `submit` submits them held, and releases only the first. A job
whose folder is not below `work_dir` belongs to somebody else, whatever its name. Files in
`<work_dir>/clusters/<cluster>/jobs/<name>/` record what Slurm forgets about a job.
"""

import posixpath
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from pydantic import PositiveInt

from steptime.clusters.base import (
    CommandResult,
    Installation,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    check_job_name,
)
from steptime.clusters.checks import ClusterCheck
from steptime.clusters.connections import Connections, no_connections
from steptime.clusters.slurm.checks import slurm_checks
from steptime.clusters.slurm.commands import AccountingUnavailable, SlurmCommands
from steptime.clusters.slurm.config import SlurmConfig
from steptime.clusters.slurm.job_records import (
    HELD_BY_USER,
    PREEMPTED,
    JobRecord,
    end_record_path,
    lost_before_it_started,
    read_end_record,
    read_records,
    record_status,
    status_by_script,
)
from steptime.clusters.slurm.node_check import REFUSED, REPORT, refused_nodes
from steptime.clusters.slurm.ssh import LoginNode
from steptime.clusters.slurm.submit import SUBMIT_TIMEOUT_S, error_for_refused_job, submit_command
from steptime.errors import NotRegular, OutOfReach, SystemFailure, UserError, one_line
from steptime.frozen import Frozen
from steptime.waiting import poll_until_async

_CANCEL_TIMEOUT_S = 300
"""How long a cancelled job may take to end: Slurm's KillWait (30 s), SIGKILL, then the epilog."""
_LOOK_S = 0.5
_MISSING_FOR_S = 60
"""A job is gone that squeue has not shown for this long, if nothing else shows how it ended."""
_LOST_AFTER_S = 600
"""Slurm has lost a job that never started if squeue has not shown it for this long."""


class _JobFile(Frozen):
    """The content of `job.json`: what Slurm does not record about a job, or forgets too early."""

    directory: str
    log_path: str
    time_limit_s: PositiveInt
    installation: Installation | None = None


def connect(config: SlurmConfig, connections: Connections = no_connections) -> "SlurmCluster":
    """Return the cluster of a configuration; it logs in at the first call."""
    return SlurmCluster(config, connections)


class SlurmCluster:
    """A `Cluster` whose jobs are Slurm jobs."""

    def __init__(self, config: SlurmConfig, connections: Connections) -> None:
        self.name = config.name
        self._config = config
        self._root = config.root.rstrip("/")
        self._jobs = f"{self._root}/clusters/{config.name}/jobs"
        self._node = LoginNode(config.connection, connections, config.login_nodes)
        self._patience_s = config.patience_h * 3600
        self._ended: dict[str, JobStatus] = {}
        self._seen_at: dict[str, float] = {}
        self._missing_since: dict[str, float] = {}
        self._notes: dict[str, bytes] = {}
        self._slurm = SlurmCommands(self._node.run, cluster=config.name, root=self._root)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._node.close()

    async def submit(self, spec: JobSpec) -> Job:
        """Start the job of `spec`, or return the existing job of that name.

        Raises UserError for a job that this Slurm can never run or that asks for nodes which are out of
        order, SubmitLimit if Slurm accepts no more jobs now, another SystemFailure if the submission fails.
        """
        recorded = _JobFile(
            directory=spec.directory,
            log_path=spec.log_path,
            time_limit_s=spec.time_limit_s,
            installation=spec.installation,
        )
        record = await self._find_record(spec.name, may_guess=await self._read_job_file(spec.name) is None)
        if record is None:
            await self._check_nodes(spec)
            await self._write_job(spec, recorded)
        if record is None or (record.in_queue and not await self._submitted_record(spec.name)):
            record = await self._submit(spec)
        return self._job(record, recorded)

    async def find(self, name: str) -> Job | None:
        """Return the job of that unique name, live or ended, or None if the cluster never had it."""
        recorded = await self._read_job_file(name)
        record = await self._find_record(name, may_guess=False) if recorded else None
        return self._job(record, recorded) if record and recorded else None

    async def poll(self, names: Sequence[str]) -> dict[str, JobStatus]:
        """Return the states of many jobs: one squeue, and one sacct for jobs that have left the queue.

        A job that has left the queue and whose end is not known counts as running, with a reason. It becomes
        UNKNOWN `patience_h` hours after its latest possible end, or after ten minutes if it never started, as
        Slurm has then lost it. This also cancels all but the first job of a name, and repeats releases that
        were lost.
        """
        for name in names:
            check_job_name(name)
        not_ended = [name for name in dict.fromkeys(names) if name not in self._ended]
        queue = await self._slurm.squeue(not_ended)
        refused = await self._cancel_duplicates(queue) | await self._release_unreleased(queue)
        self._seen_at |= dict.fromkeys(queue, time.monotonic())
        for name in queue:
            self._missing_since.pop(name, None)
        statuses = {name: record_status(records[0]) for name, records in queue.items()}
        for name, why in refused.items():
            reason = "; ".join(filter(None, (statuses[name].reason, why)))
            statuses[name] = statuses[name].model_copy(update={"reason": reason})
        statuses |= await self._statuses_after_queue([name for name in not_ended if name not in queue])
        for name, status in statuses.items():
            if status.cluster_fault:
                statuses[name] = status.model_copy(update={"failed_nodes": await self._failed_nodes(status)})
            elif status.state is JobState.FAILED and status.exit_code == REFUSED:
                statuses[name] = await self._apply_node_check(name, status)
            if not status.state.is_live and status.state is not JobState.UNKNOWN:
                self._ended[name] = statuses[name]
        return {name: self._ended.get(name) or statuses[name] for name in names}

    async def cancel(self, name: str) -> None:
        """Cancel the job and wait until its nodes are free. Raises SystemFailure if that takes too long.

        An empty answer of squeue alone does not show that the job is gone: squeue shows ended jobs for a
        while, too, and a controller that is overloaded may print nothing.
        """
        check_job_name(name)
        live: dict[str, str] = {}
        refusal: SystemFailure | None = None
        missing_since: float | None = None

        async def is_gone() -> bool:
            nonlocal live, refusal, missing_since
            records = (await self._slurm.squeue([name])).get(name, [])
            live = {record.job_id: record.state for record in records if record.in_queue}
            if not records:
                missing_since = missing_since or time.monotonic()
                live = await self._live_by_accounting(name, time.monotonic() - missing_since)
            if not live:
                return True
            if refusal is not None:
                raise refusal
            try:  # each time: a controller that dies before it saves its state forgets a scancel
                await self._slurm.scancel(
                    name, sorted(id for id, state in live.items() if state != "COMPLETING")
                )
            except SystemFailure as failure:  # perhaps it has ended since
                refusal = failure
            return False

        if not await poll_until_async(is_gone, every_s=_LOOK_S, timeout_s=_CANCEL_TIMEOUT_S):
            raise SystemFailure(
                f"job {name} on {self.name} is still there {_CANCEL_TIMEOUT_S} s after scancel: {live}"
            )

    async def _live_by_accounting(self, name: str, missing_s: float) -> dict[str, str]:
        """Return the states by id of a job that squeue has not shown for `missing_s`; empty if it is gone.

        Where neither the accounting nor its script has its end, it is gone if it stays missing for a minute,
        in which it is cancelled by its id. The accounting keeps jobs as running that a controller has lost.
        """
        submitted = await self._submitted_record(name)
        if submitted is None or missing_s > _MISSING_FOR_S:
            return {}
        try:
            records = (await self._sacct([name])).get(name, [])
        except AccountingUnavailable:
            records = []
        if records:
            return {record.job_id: record.state for record in records if record.in_queue}
        end = await self._read_of_job(end_record_path(submitted.directory))
        return {} if read_end_record(end, submitted.job_id) else {submitted.job_id: submitted.state}

    async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Read up to `limit` bytes of a file from `offset`; b"" if there is none (yet)."""
        return await self._node.read(path, offset, limit)

    def local_path(self, path: str) -> Path | None:  # noqa: ARG002
        """Return None: files of a login node are always read over ssh."""
        return None

    async def write(self, path: str, data: bytes) -> None:
        """Write a file atomically and create its folder. Raises SystemFailure if it cannot be written."""
        await self._node.write(path, data)

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 600,
        on_output: Callable[[str], None] | None = None,
    ) -> CommandResult:
        """Run a command on the login node. Raises SystemFailure if it takes longer than `timeout_s`."""
        return await self._node.run(argv, timeout_s=timeout_s, on_output=on_output)

    def checks(self) -> tuple[ClusterCheck, ...]:
        """Return the checks of `steptime cluster check` for Slurm."""
        return slurm_checks(self._config, self.run, self._slurm, self._clock)

    def _folder(self, name: str) -> str:
        check_job_name(name)
        return posixpath.join(self._jobs, name)

    def _job(self, record: JobRecord, recorded: _JobFile) -> Job:
        return Job(
            cluster=self.name,
            name=record.name,
            job_id=record.job_id,
            directory=recorded.directory,
            log_path=recorded.log_path,
            submitted_at=record.submitted_at,
            installation=recorded.installation,
        )

    async def _read_job_file(self, name: str) -> _JobFile | None:
        text = await self._read_note(name, "job.json")
        return _JobFile.model_validate_json(text) if text else None

    async def _find_record(self, name: str, *, may_guess: bool) -> JobRecord | None:
        """Return the job `name` from squeue, else from the squeue line stored at submission, else from sacct.

        If the accounting does not answer, raises SystemFailure, or returns None if the caller `may_guess`.
        """
        if records := (await self._slurm.squeue([name])).get(name):
            return records[0]
        if submitted := await self._submitted_record(name):
            return submitted
        try:
            records = (await self._sacct([name])).get(name)
        except AccountingUnavailable:
            if may_guess:
                return None
            raise
        return records[0] if records else None

    async def _write_job(self, spec: JobSpec, recorded: _JobFile) -> None:
        if not spec.directory.startswith(f"{self._root}/"):
            raise UserError(
                f"job {spec.name}: its folder {spec.directory} is not below work_dir {self._root}"
            )
        for file, text in spec.all_files.items():
            await self.write(posixpath.join(spec.directory, file), text.encode())
        await self._node.make_folder(posixpath.dirname(spec.log_path))
        await self.write(f"{self._folder(spec.name)}/job.json", recorded.model_dump_json().encode())

    async def _check_nodes(self, spec: JobSpec) -> None:
        """Raise UserError for named nodes that are drained or down: Slurm would let the job wait."""
        if spec.nodes and (out := await self._slurm.unusable_nodes(spec.nodes)):
            raise UserError(
                f"{self.name} cannot run job {spec.name} on the nodes that it asks for: "
                f"{'; '.join(f'{node} is {state}' for node, state in out.items())}. Ask for other nodes, or "
                "run it again when Slurm uses them again."
            )

    async def _submit(self, spec: JobSpec) -> JobRecord:
        argv = submit_command(spec, root=self._root, folder=self._folder(spec.name))
        try:
            done = await self.run(argv, timeout_s=SUBMIT_TIMEOUT_S)
        except SystemFailure:  # its reply is lost: the second one finds what was submitted
            done = await self.run(argv, timeout_s=SUBMIT_TIMEOUT_S)
        if records := self._slurm.ours(read_records(done.stdout), [spec.name]).get(spec.name):
            return records[0]
        if done.exit_code == 0:
            raise SystemFailure(
                f"job {spec.name} was submitted on {self.name}, but what squeue prints of it there cannot be "
                f"read: '{one_line(done.stdout.strip(), at_most=500)}'"
            )
        lines = spec.script.splitlines()
        from_file = [
            option for option in self._config.extra_options if f"#SBATCH {shlex.quote(option)}" in lines
        ]
        raise error_for_refused_job(spec.name, self.name, done, extra_options=from_file)

    async def _sacct(self, names: Sequence[str]) -> dict[str, list[JobRecord]]:
        """Return what Slurm's accounting has about these job names. Raises AccountingUnavailable."""
        by_name = await self._slurm.sacct("--name", names, names)
        # By its name, sacct does not show a job that was never free to start, as one cancelled while held.
        missing = [name for name in names if name not in by_name]
        ids = [record.job_id for name in missing if (record := await self._submitted_record(name))]
        return by_name | await self._slurm.sacct("--jobs", ids, missing)

    async def _submitted_record(self, name: str) -> JobRecord | None:
        """Return the job as squeue showed it right after its submission; None if that was not recorded."""
        lines = (await self._read_note(name, "squeue")).decode(errors="replace")
        return next(iter(read_records(lines)), None)

    async def _read_note(self, name: str, file: str) -> bytes:
        """Return a file recorded about the job, b"" if there is none (yet). What was read is cached."""
        path = f"{self._folder(name)}/{file}"
        if path not in self._notes and (text := await self.read(path)):
            self._notes[path] = text
        return self._notes.get(path, b"")

    async def _read_of_job(self, path: str) -> bytes:
        """Return a file that the job wrote, b"" if there is none or it has put something else there."""
        try:
            return await self.read(path)
        except NotRegular:
            return b""

    async def _statuses_after_queue(self, names: Sequence[str]) -> dict[str, JobStatus]:
        """Return the states of jobs that left the queue; the accounting wins over the script's own record."""
        try:
            history = await self._sacct(names)
            without = (
                "the accounting does not have it" if self._slurm.has_accounting else "there is no accounting"
            )
        except AccountingUnavailable as error:
            history, without = {}, f"the accounting does not answer: {error}"
        now: float | None = None
        statuses = {}
        for name in names:
            accounted = next(iter(history.get(name, ())), None)
            if accounted is not None and accounted.is_settled:
                statuses[name] = record_status(accounted)
            elif (submitted := await self._submitted_record(name) or accounted) is None:
                statuses[name] = JobStatus.unknown_job(self.name, name)
            else:
                recorded = await self._read_job_file(name)
                directory = recorded.directory if recorded else submitted.directory
                now = await self._clock() if now is None else now
                unseen_s = time.monotonic() - self._seen_at[name] if name in self._seen_at else now
                end = read_end_record(await self._read_of_job(end_record_path(directory)), submitted.job_id)
                if accounted is not None and end is None and await self._is_lost(accounted, recorded):
                    statuses[name] = lost_before_it_started(accounted)
                    continue
                statuses[name] = status_by_script(
                    end,
                    submitted,
                    accounted,
                    without,
                    time_limit_s=recorded.time_limit_s if recorded else 0,
                    settled_after=now - unseen_s,
                    within_s=self._patience_s,
                    now=now,
                )
        return statuses

    async def _is_lost(self, accounted: JobRecord, recorded: _JobFile | None) -> bool:
        """Return whether Slurm has lost a job that is not in the queue and did not record its end.

        A controller that is killed forgets jobs that it has just accepted, which wait in the accounting for
        ever. A job that was started has a log, even if the accounting does not know yet.
        """
        now = time.monotonic()
        missing_s = now - self._missing_since.setdefault(accounted.name, now)
        if recorded is None or not accounted.never_started or missing_s < _LOST_AFTER_S:
            return False
        return not await self._read_of_job(recorded.log_path)

    async def _clock(self) -> float:
        """Return the login node's Unix time, which is close to Slurm's. Raises OutOfReach."""
        done = await self.run(["date", "+%s"], timeout_s=60)
        if not done.stdout.strip().isdecimal():
            raise OutOfReach(f"the clock of {self.name} cannot be read: {one_line(done.stderr.strip())}")
        return float(done.stdout)

    async def _cancel_duplicates(self, queue: dict[str, list[JobRecord]]) -> dict[str, str]:
        """Cancel all but the first job of each name: Slurm accepted them after their submitter gave up.

        Returns the names of jobs for which Slurm refuses that, with its words: this is no reason to stop
        polling the others.
        """
        refused = {}
        for name, (_, *later) in queue.items():
            ids = [record.job_id for record in later if record.in_queue and record.state != "COMPLETING"]
            try:
                await self._slurm.scancel(name, ids)
            except OutOfReach:
                raise
            except SystemFailure as failure:
                refused[name] = f"a second job of its name cannot be cancelled: {failure}"
        return refused

    async def _release_unreleased(self, queue: dict[str, list[JobRecord]]) -> dict[str, str]:
        """Release again the jobs whose release was lost, as when the controller dies before saving its state.

        Jobs that a person has held after their release stay held. Returns the names of jobs that Slurm
        refuses to release, with its words.
        """
        refused = {}
        for name, records in queue.items():
            is_held = (records[0].state, records[0].reason) == ("PENDING", HELD_BY_USER)
            if is_held and await self._submitted_record(name):
                try:
                    await self._slurm.release_never_released([records[0].job_id])
                except OutOfReach:
                    raise
                except SystemFailure as failure:
                    refused[name] = f"it cannot be released: {failure}"
        return refused

    async def _failed_nodes(self, status: JobStatus) -> tuple[str, ...]:
        """Return the nodes of a failed job that are out of order; none for a preempted job.

        If Slurm knows of none, or does not answer, return the only node of a job with one node, else none.
        """
        if not status.nodes or status.reason == PREEMPTED:
            return ()
        try:
            bad = await self._slurm.unusable_nodes(status.nodes, ("down", "drain", "fail", "no_respond"))
        except SystemFailure:
            bad = {}
        return tuple(bad) or (status.nodes if len(status.nodes) == 1 else ())

    async def _apply_node_check(self, name: str, status: JobStatus) -> JobStatus:
        """Return the status, made a cluster fault if the node check before the training refused nodes."""
        recorded = await self._read_job_file(name)
        if recorded is None:
            return status
        refused = refused_nodes(await self._read_of_job(posixpath.join(recorded.directory, REPORT)))
        if not refused:
            return status
        why = "; ".join(f"{node}: {faults}" for node, faults in refused.items())
        return status.model_copy(
            update={
                "cluster_fault": True,
                "failed_nodes": tuple(refused),
                "reason": f"the node check refused {one_line(why, at_most=500)}",
            }
        )
