"""Run a command as a workload: Run:ai has no login node, and only pods see the volume.

The command runs in the same image, and with the same paths, as jobs do: so jobs can use what it builds, such
as a virtual environment. Its workload has no GPUs and is deleted when the command has ended.
"""

import asyncio
import shlex
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from steptime.clusters.base import CommandResult
from steptime.clusters.command_output import Lines
from steptime.clusters.runai.answers import Project
from steptime.clusters.runai.client import TRAININGS, RunaiClient
from steptime.clusters.runai.config import RunaiConfig
from steptime.clusters.runai.phases import ENDED, Notes
from steptime.clusters.runai.volume import JobNotes, Volume
from steptime.clusters.runai.workloads import workload_name, workload_request
from steptime.errors import SystemFailure
from steptime.waiting import poll_until_async

_STARTS_WITHIN_S = 1800.0
"""How long a command's workload may wait for its pod."""
_SETTLES_WITHIN_S = 30.0
"""How long the note of a command's end may lag behind Run:ai's report that its pod has ended."""


class _Tail:
    """A growing output file on the volume: its text so far, passed on line by line."""

    def __init__(self, volume: Volume, path: str, on_output: Callable[[str], None] | None) -> None:
        self._volume, self._path, self._lines = volume, path, Lines(on_output)
        self._offset = 0
        self.text = ""

    def catch_up(self, *, ended: bool) -> None:
        """Read the new part of the file; with `ended`, pass on a last line without a line break, too."""
        while chunk := self._volume.read(self._path, self._offset, 1 << 20):
            self._offset += len(chunk)
            self.text += self._lines.take(chunk)
        if ended:
            self._lines.end()


async def run_as_workload(
    argv: Sequence[str],
    *,
    client: RunaiClient,
    project: Project,
    config: RunaiConfig,
    timeout_s: float,
    on_output: Callable[[str], None] | None,
) -> CommandResult:
    """Run `argv` in a workload to its end, and delete the workload in any case; see `Cluster.run`.

    Raises SystemFailure after `timeout_s`, or if the files of the command cannot be written.
    """
    name = f"command-{uuid.uuid4().hex}"
    volume = config.volume
    notes = JobNotes(volume, config.state, name)
    folder = str(notes.folder)

    def write_files() -> None:
        # Data, not shell text: each argument is quoted, and the script is a file.
        script = f"#!/usr/bin/env bash\nexec {shlex.join(argv)} >{folder}/stdout 2>{folder}/stderr\n"
        volume.write(f"{folder}/job.sh", script)
        notes.prepare()

    try:
        await asyncio.to_thread(write_files)
    except OSError as error:
        raise SystemFailure(f"{folder} could not be written on {config.name}: {error}") from error
    kind, request = workload_request(
        config,
        project,
        job_name=name,
        start_script=notes.start_script,
        gpus=0,
        variables=config.pod_variables(
            folder,
            directory=folder,
            log_path=f"{folder}/log",
            time_limit_s=timeout_s + 60,  # even if nobody watches any more, it does not run for ever
        ),
        annotations={"steptime-command": name},
    )
    tails = [_Tail(volume, f"{folder}/{stream}", on_output) for stream in ("stdout", "stderr")]
    workload_id = ""
    try:
        workload_id = (await client.create(kind, request)).workload_id
        notes_of_pod = await _wait(
            argv,
            client=client,
            config=config,
            notes=notes,
            tails=tails,
            workload_id=workload_id,
            timeout_s=timeout_s,
        )
    finally:
        await asyncio.shield(_clean_up(client, project, name, workload_id, volume.local(folder)))
    stdout, stderr = (tail.text for tail in tails)
    return CommandResult(exit_code=notes_of_pod.ends[0].exit_code, stdout=stdout, stderr=stderr)


async def _wait(
    argv: Sequence[str],
    *,
    client: RunaiClient,
    config: RunaiConfig,
    notes: JobNotes,
    tails: Sequence[_Tail],
    workload_id: str,
    timeout_s: float,
) -> Notes:
    """Wait until the command's pod has recorded its end, and return its notes.

    Raises SystemFailure if the command does not start, takes too long, or ends without such a record.
    """
    began = time.monotonic()
    started = pod_ended = None

    async def ended() -> Notes | None:
        nonlocal started, pod_ended
        noted = await asyncio.to_thread(notes.notes)
        for tail in tails:
            await asyncio.to_thread(tail.catch_up, ended=bool(noted.ends))
        if noted.ends:
            return noted
        now = time.monotonic()
        if noted.starts and started is None:
            started = now
        workload = await client.workload(workload_id)
        has_ended = workload is None or workload.phase in ENDED
        pod_ended = (pod_ended or now) if has_ended else None
        if pod_ended is not None and now - pod_ended > _SETTLES_WITHIN_S:
            phase = workload.phase if workload else "gone"
            why = (workload and workload.phase_message) or "it noted no end"
            raise SystemFailure(f"the command {argv[0]} could not run on {config.name}: {phase}, {why}")
        if started is not None and now - started > timeout_s:
            raise SystemFailure(f"the command {argv[0]} was ended after {timeout_s:g} s")
        if started is None and now - began > _STARTS_WITHIN_S:
            raise SystemFailure(
                f"the command {argv[0]} did not start on {config.name} within {_STARTS_WITHIN_S:g} s"
            )
        return None

    return cast(Notes, await poll_until_async(ended, every_s=config.poll_interval_s))


async def _clean_up(client: RunaiClient, project: Project, name: str, workload_id: str, folder: Path) -> None:
    """Delete the command's files and its workload, even if its creation was not answered."""
    if not workload_id:
        listing = await client.workloads([f"projectId=={project.id}", f"name=={workload_name(name)}"])
        workload_id = next((workload.id for workload in listing.workloads), "")
    if workload_id:
        await client.delete(TRAININGS, workload_id)
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
