"""The Run:ai backend: a job is a workload, identified by its name; its files lie on the mounted volume.

A workload is looked up by name before it is created, and again if the answer to its creation was lost. A
project cannot have two workloads of one name, so a second submission finds the first one's workload. `volume`
describes the files on the volume, `phases` what Run:ai's phases mean.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

from steptime.clusters.base import CommandResult, Job, JobSpec, JobState, JobStatus
from steptime.clusters.checks import ClusterCheck, clock_difference, not_applicable
from steptime.clusters.connections import Connection, Connections
from steptime.clusters.runai.answers import Details, Project, RunaiWorkload
from steptime.clusters.runai.client import DISTRIBUTED, TRAININGS, NameTaken, RunaiClient, UnclearAnswer
from steptime.clusters.runai.command import run_as_workload
from steptime.clusters.runai.config import RunaiConfig
from steptime.clusters.runai.phases import ENDED, MEANING, Stop, vanished, workload_status
from steptime.clusters.runai.volume import JobNotes, RunaiJob
from steptime.clusters.runai.workloads import PREFIX, workload_name, workload_request
from steptime.errors import OutOfReach, SystemFailure, UserError
from steptime.waiting import poll_until_async

_APPEARS_WITHIN_S = 15.0
"""How long a workload may take to be listed if the answer to its creation was lost."""
_LISTED_WITHIN_S = 60.0
"""How long an accepted workload may be missing from Run:ai's lists."""
_KNOWN_WITHIN_S = 180.0
"""How long after its files were written a job may become known: its creation is tried for a while, too."""
_CLOCKS_APART_S = 300.0
_CANCEL_MARGIN_S = 120.0
"""Seconds beyond `grace_s` for the pods to end before the workload is deleted, and once more after that."""
_LOOK_S = 0.5

JOB_NAME = "steptime-job"
_DIRECTORY, _LOG = "steptime-directory", "steptime-log"
_TIME_LIMIT_S = "steptime-time-limit-s"
_INSTALLATION = "steptime-installation"


def connect(config: RunaiConfig, connections: Connections) -> "RunaiCluster":
    """Return the cluster of a configuration; its login comes from `connections` when it is opened."""
    return RunaiCluster(config, connections)


class RunaiCluster:
    """A `Cluster` whose jobs are workloads of one Run:ai project."""

    def __init__(self, config: RunaiConfig, connections: Connections) -> None:
        self.name = config.name
        self._config = config
        self._connections = connections
        self._volume = config.volume
        self._client_: RunaiClient | None = None
        self._project_name = ""
        self._project_: Project | None = None
        self._known: dict[str, RunaiJob] = {}
        self._ended: dict[str, JobStatus] = {}

    async def __aenter__(self) -> Self:
        connection = await self._connections(self._config.connection)
        if connection.kind != "runai":
            raise UserError(
                f"connection '{connection.name}' is of type {connection.kind}, and a Run:ai cluster needs "
                f"one of type runai: name another in config/clusters/{self.name}.yaml."
            )
        self._project_name = _project_name(self._config, connection)
        self._client_ = await RunaiClient(connection).__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._client_ is not None:
            await self._client_.__aexit__(None, None, None)

    async def submit(self, spec: JobSpec) -> Job:
        """Create the workload of `spec`, or return the existing job of that name.

        Raises UserError for a job that can never run here, SystemFailure if the workload was not created or
        may not have been; calling this again is safe, because it never creates a second workload.
        """
        notes = self._notes(spec.name)
        self._config.pods(spec.slots)
        for path in (spec.directory, spec.log_path):
            self._volume.local(path)
        existing = await self.find(spec.name)
        if existing is not None:
            return existing
        is_first = await asyncio.to_thread(notes.prepared_at) is None
        try:
            await asyncio.to_thread(self._write_files, spec, notes)
        except OSError as error:
            raise SystemFailure(
                f"the files of job {spec.name} could not be written to {self.name}: {error}"
            ) from error
        kind, request = workload_request(
            self._config,
            await self._project(),
            job_name=spec.name,
            start_script=notes.start_script,
            gpus=spec.slots,
            image=spec.image,
            variables=self._config.pod_variables(
                str(notes.folder),
                directory=spec.directory,
                log_path=spec.log_path,
                time_limit_s=spec.time_limit_s,
            ),
            annotations=job_annotations(spec),
        )
        try:
            created = await self._client.create(kind, request)
        except (UnclearAnswer, NameTaken) as error:
            return await self._wait_until_created(spec.name, error)
        except UserError as refusal:
            if is_first:
                raise
            raise SystemFailure(
                f"job {spec.name} may have been submitted to {self.name} before, though it is not found: "
                f"{refusal}"
            ) from None
        submitted = parse_job(
            job_annotations(spec),
            workload=request["name"],
            workload_id=created.workload_id,
            kind=kind,
            created_at=created.created_at,
        )
        await self._record(notes, submitted)
        return submitted.job(self.name)

    async def find(self, name: str) -> Job | None:
        """Return the job of that unique name, live or ended, or None if the cluster never had it."""
        submitted = await self._find_submitted(name)
        return submitted.job(self.name) if submitted else None

    async def poll(self, names: Sequence[str]) -> dict[str, JobStatus]:
        """Return the states of many jobs, with one list request for all that have not ended."""
        wanted = list(dict.fromkeys(names))
        open_jobs: dict[str, RunaiJob] = {}
        statuses: dict[str, JobStatus] = {}
        for name in wanted:
            if name in self._ended:
                continue
            submitted = await self._find_submitted(name)
            if submitted is None:
                statuses[name] = JobStatus.unknown_job(self.name, name)
            else:
                open_jobs[name] = submitted
        listed, at = await self._list(open_jobs)
        requests = [
            self._status(submitted, listed.get(submitted.workload_id), at) for submitted in open_jobs.values()
        ]
        statuses |= dict(zip(open_jobs, await asyncio.gather(*requests), strict=True))
        return {name: self._ended.get(name) or statuses[name] for name in wanted}

    async def cancel(self, name: str) -> None:
        """Suspend the workload and return when its pods are gone. Raises SystemFailure if they stay.

        A suspended workload keeps its name, so the job cannot be submitted a second time. A workload that
        Run:ai cannot suspend is deleted.
        """
        look = partial(self._find_submitted, name)
        prepared_at = await asyncio.to_thread(self._notes(name).prepared_at)
        since_s = math.inf if prepared_at is None else time.time() - prepared_at
        # It may have been created a moment ago by a request without an answer, and not be listed yet.
        submitted = await poll_until_async(look, every_s=_LOOK_S, timeout_s=_KNOWN_WITHIN_S - since_s)
        if submitted is not None:
            await self._stop(submitted, Stop(JobState.CANCELLED, "cancelled"))

    async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Read up to `limit` bytes of a file on the volume from `offset`; b"" if there is none (yet)."""
        return await asyncio.to_thread(self._volume.read, path, offset, limit)

    def local_path(self, path: str) -> Path:
        """Return the path by which this machine can open a file. Raises UserError outside the volume."""
        return self._volume.local(path)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file on the volume atomically and create its folder. Raises SystemFailure if that fails."""
        try:
            await asyncio.to_thread(self._volume.write, path, data)
        except OSError as error:
            raise SystemFailure(f"{path} could not be written on {self.name}: {error}") from error

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 600,
        on_output: Callable[[str], None] | None = None,
    ) -> CommandResult:
        """Run a command in a workload of its own, without GPUs: there is no login node.

        `timeout_s` counts from its start. Raises SystemFailure if it takes longer or does not start.
        """
        return await run_as_workload(
            argv,
            client=self._client,
            project=await self._project(),
            config=self._config,
            timeout_s=timeout_s,
            on_output=on_output,
        )

    def checks(self) -> tuple[ClusterCheck, ...]:
        """Return the checks of `steptime cluster check` for Run:ai."""
        return (
            ClusterCheck("login", self._check_login, is_required=True),
            ClusterCheck("project", self._check_project, is_required=True),
            *not_applicable(("GPUs",), "Run:ai's API names no type of GPU; the record of a run does"),
            *not_applicable(("accounting",), "Run:ai keeps its workloads itself"),
            *not_applicable(("submit limits",), "the project's quota decides when a workload starts"),
            ClusterCheck("clock", self._check_clock),
        )

    async def _check_login(self) -> str:
        await self._client.log_in()
        return f"{self._client.base_url} gives a token, by connection '{self._config.connection}'"

    async def _check_project(self) -> str:
        await self._project()
        return f"{self._project_name} is there"

    async def _check_clock(self) -> str:
        before = time.time()
        listing = await self._client.workloads([f"projectId=={(await self._project()).id}"])
        return clock_difference(listing.at, (before + time.time()) / 2, at_most_s=_CLOCKS_APART_S)

    @property
    def _client(self) -> RunaiClient:
        if self._client_ is None:
            raise RuntimeError(f"cluster {self.name} is not open: use it as an async context manager")
        return self._client_

    async def _project(self) -> Project:
        if self._project_ is None:
            self._project_ = await self._client.project(self._project_name)
        return self._project_

    def _notes(self, name: str) -> JobNotes:
        return JobNotes(self._volume, self._config.state, name)

    def _write_files(self, spec: JobSpec, notes: JobNotes) -> None:
        for name, text in spec.all_files.items():
            self._volume.write(f"{spec.directory}/{name}", text)
        self._volume.local(spec.log_path).parent.mkdir(parents=True, exist_ok=True)
        notes.prepare()

    async def _record(self, notes: JobNotes, submitted: RunaiJob) -> None:
        try:
            await asyncio.to_thread(notes.write_submitted, submitted)
        except OSError as error:
            raise SystemFailure(
                f"job {submitted.name} was submitted, but this could not be recorded on {self.name}: {error}"
            ) from error

    async def _find_submitted(self, name: str) -> RunaiJob | None:
        """Return the job from its `submitted.json`, else look it up in Run:ai and record it; else None."""
        if name in self._known:
            return self._known[name]
        notes = self._notes(name)
        submitted = await asyncio.to_thread(notes.submitted)
        if submitted is not None:
            self._known[name] = submitted
            return submitted
        project = await self._project()
        listing = await self._client.workloads([f"projectId=={project.id}", f"name=={workload_name(name)}"])
        for workload in listing.workloads:
            if workload.name == workload_name(name) and workload.deleted_at is None:
                submitted = await self._read_job(name, workload)
                await self._record(notes, submitted)
                return submitted
        return None

    async def _read_job(self, name: str, workload: RunaiWorkload) -> RunaiJob:
        """Return the job that a workload's annotations describe.

        Raises NameTaken if that is another job than `name`, OutOfReach if Run:ai does not say which it is.
        """
        likely = DISTRIBUTED if workload.distributed_framework else TRAININGS
        for kind in dict.fromkeys((likely, TRAININGS, DISTRIBUTED)):
            details = await self._client.details(kind, workload.id)
            if details is None or details.spec is None or details.spec.annotations is None:
                continue
            annotations = workload_annotations(details)
            if annotations.get(JOB_NAME) != name:
                raise NameTaken(
                    f"project '{self._project_name}' has a workload {workload.name} that is not job {name}: "
                    "rename or delete it in Run:ai."
                )
            return parse_job(
                annotations,
                workload=workload.name,
                workload_id=workload.id,
                kind=kind,
                created_at=workload.created_at,
            )
        raise OutOfReach(
            f"{self.name} lists workload {workload.name} and does not describe it: it may be that of job "
            f"{name}. If it is another's, delete it in Run:ai."
        )

    async def _wait_until_created(self, name: str, error: Exception) -> Job:
        """Wait for a workload whose creation was refused or not answered, and return its job.

        Raises SystemFailure if it does not appear, NameTaken if its name is another's.
        """
        look = partial(self.find, name)
        # If its name is taken it exists, and lists lag behind; else it may never appear.
        within_s = _LISTED_WITHIN_S if isinstance(error, NameTaken) else _APPEARS_WITHIN_S
        job = await poll_until_async(look, every_s=_LOOK_S, timeout_s=within_s)
        if job is None:
            raise SystemFailure(
                f"job {name} may or may not have been submitted to {self.name}, where it is not found: "
                f"{error}. Submit it again: steptime first looks for an existing one."
            )
        return job

    async def _list(self, jobs: dict[str, RunaiJob]) -> tuple[dict[str, RunaiWorkload], float]:
        """Return Run:ai's data on these jobs' workloads, by workload id, and its clock (Unix time)."""
        if not jobs:
            return {}, time.time()
        project = await self._project()
        filters = [f"projectId=={project.id}"]
        if len(jobs) == 1:
            filters += [f"name=={job.workload}" for job in jobs.values()]
        else:
            # Ended workloads stay listed for weeks: only those since the oldest that is waited for.
            oldest = min(job.submitted_at for job in jobs.values()) - _CLOCKS_APART_S
            since = datetime.fromtimestamp(oldest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            filters += [f"name=^{PREFIX}", f"createdAt>={since}"]
        listing = await self._client.workloads(filters)
        return {workload.id: workload for workload in listing.workloads}, listing.at

    async def _status(self, job: RunaiJob, workload: RunaiWorkload | None, at: float) -> JobStatus:
        """Return the job's state; end a job that has been degraded for too long.

        A workload that was not listed is requested by id before it counts as gone.
        """
        workload = workload or await self._client.workload(job.workload_id)
        if workload is None or workload.deleted_at is not None:
            return await self._status_without_workload(job, at)
        phase = workload.phase
        since_s = at - (workload.phase_updated_at or at)
        if phase == "Degraded" and since_s >= self._config.degraded_after_s:
            await self._end_degraded(job, since_s)
        # Read after the phase was asked for: what a pod notes comes before its phase.
        noted = await asyncio.to_thread(self._notes(job.name).notes)
        if (phase == "Unknown" or phase not in MEANING) and since_s >= self._config.unknown_after_s:
            reason = f"Run:ai has called its phase '{phase}' for {since_s:.0f} s"
            return JobStatus(state=JobState.UNKNOWN, reason=reason)
        status = workload_status(workload, noted, time_limit_s=job.time_limit_s)
        if phase == "Failed" and not noted.ends:
            status = await self._with_event(job, status)
        if phase in ENDED:
            self._ended[job.name] = status
        return status

    async def _status_without_workload(self, job: RunaiJob, at: float) -> JobStatus:
        """Return the state of a job whose workload is not listed yet, or was deleted."""
        noted = await asyncio.to_thread(self._notes(job.name).notes)
        if at - job.submitted_at < _LISTED_WITHIN_S and noted.stop is None:
            return JobStatus(state=JobState.QUEUED, reason="accepted, and not yet listed")
        status = vanished(job.name, noted, where=self.name)
        if status.state is not JobState.UNKNOWN:
            self._ended[job.name] = status
        return status

    async def _end_degraded(self, job: RunaiJob, since_s: float) -> None:
        """Suspend a job that has lacked a pod for `since_s` seconds, and record it as failed.

        It would wait for ever and hold its GPUs.
        """
        stop = Stop(JobState.FAILED, f"its workload was degraded for {since_s:.0f} s and was ended")
        await asyncio.to_thread(self._notes(job.name).write_stop, stop)
        await self._client.suspend(job.kind, job.workload_id)

    async def _with_event(self, job: RunaiJob, status: JobStatus) -> JobStatus:
        """Add Run:ai's last warning, if any, to a failure that no pod explains, such as a missing image."""
        events = await self._client.events(job.workload_id)
        warning = next((event for event in events if event.type == "Warning"), None)
        if warning is None:
            return status
        message = " ".join(warning.message.split())
        return status.model_copy(update={"reason": f"{status.reason}; {warning.reason}: {message}"})

    async def _stop(self, job: RunaiJob, stop: Stop) -> None:
        suspended = False
        workload: RunaiWorkload | None = None

        async def is_gone() -> bool:
            nonlocal suspended, workload
            workload = await self._client.workload(job.workload_id)
            if workload is None:
                listed, _ = await self._list({job.name: job})
                workload = listed.get(job.workload_id)
            if workload is None or workload.deleted_at is not None:
                return suspended or time.time() - job.submitted_at > _LISTED_WITHIN_S
            if workload.phase in ENDED:
                return True
            if not suspended:
                await asyncio.to_thread(self._notes(job.name).write_stop, stop)
                await self._client.suspend(job.kind, job.workload_id)
                suspended = True
            return False

        patience_s = self._config.grace_s + _CANCEL_MARGIN_S
        every_s = min(_LOOK_S, self._config.poll_interval_s)
        if await poll_until_async(is_gone, every_s=every_s, timeout_s=patience_s):
            return
        await self._client.delete(job.kind, job.workload_id)
        if not await poll_until_async(is_gone, every_s=every_s, timeout_s=patience_s):
            raise SystemFailure(
                f"job {job.name} on {self.name} was asked to end {2 * patience_s:.0f} s ago, and its "
                f"workload {job.workload} is still {workload and workload.phase}: delete it in Run:ai"
            )


def _project_name(config: RunaiConfig, connection: Connection) -> str:
    project = str(connection.extra.get("project") or config.project or "")
    if not project:
        raise UserError(
            f"cluster {config.name} names no Run:ai project: write project: in "
            f"config/clusters/{config.name}.yaml, or into the connection '{connection.name}'."
        )
    if "," in project:
        raise UserError(f"a Run:ai project cannot be called '{project}': a name has no comma.")
    return project


def job_annotations(spec: JobSpec) -> dict[str, str]:
    """Return the annotations that describe a job on its workload; `parse_job` reads them back."""
    return {
        JOB_NAME: spec.name,
        _DIRECTORY: spec.directory,
        _LOG: spec.log_path,
        _TIME_LIMIT_S: str(spec.time_limit_s),
        _INSTALLATION: json.dumps(spec.installation.model_dump() if spec.installation else None),
    }


def workload_annotations(details: Details) -> dict[str, str]:
    """Return the annotations in a workload's details, by name."""
    annotations = (details.spec and details.spec.annotations) or ()
    return {annotation.name: annotation.value or "" for annotation in annotations}


def parse_job(
    annotations: Mapping[str, str], *, workload: str, workload_id: str, kind: str, created_at: float | None
) -> RunaiJob:
    """Return the job that a workload and its annotations describe.

    Raises SystemFailure if annotations are missing.
    """
    try:
        return RunaiJob(
            name=annotations[JOB_NAME],
            workload=workload,
            workload_id=workload_id,
            kind=kind,
            directory=annotations[_DIRECTORY],
            log_path=annotations[_LOG],
            time_limit_s=int(annotations[_TIME_LIMIT_S]),
            submitted_at=created_at or time.time(),
            installation=json.loads(annotations.get(_INSTALLATION) or "null"),
        )
    except (KeyError, ValueError) as error:
        raise SystemFailure(f"the annotations of workload {workload} are not steptime's: {error!r}") from None
