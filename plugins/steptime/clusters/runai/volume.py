"""The volume that Run:ai workloads mount, as this machine sees it, and the files about jobs on it.

    <work_dir>/clusters/<cluster>/jobs/<job>/
        submitted.json      the job, written once its workload was created
        start.sh            what each pod runs
        started-<rank>      time and node, written by the pod before the script starts
        ended-<rank>        time, exit code and its cause; written by the pod
        stop.json           written before steptime ends the workload: the reason and the job's state

Functions here block: call them in a thread.
"""

import contextlib
import dataclasses
import json
import os.path
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from steptime.clusters.base import Installation, Job, JobState, check_job_name
from steptime.clusters.runai.phases import Notes, PodEnd, Stop
from steptime.errors import UserError, one_line
from steptime.files import open_regular, write_whole

_START_SCRIPT = Path(__file__).with_name("start.sh")


@dataclass(frozen=True)
class RunaiJob:
    """The content of `submitted.json`: a job, and the Run:ai workload that it was submitted as."""

    name: str
    workload: str
    """The workload's name in Run:ai."""
    workload_id: str
    kind: str
    directory: str
    log_path: str
    time_limit_s: int
    submitted_at: float
    installation: dict[str, Any] | None = None
    """The `Installation` that submitted it; None for staging."""

    def job(self, cluster: str) -> Job:
        """Return the job in the form that all cluster kinds share."""
        return Job(
            cluster=cluster,
            name=self.name,
            job_id=self.workload_id,
            directory=self.directory,
            log_path=self.log_path,
            submitted_at=self.submitted_at,
            installation=Installation(**self.installation) if self.installation else None,
        )


@dataclass(frozen=True)
class Volume:
    """Maps the cluster's paths on the mounted volume to paths on this machine."""

    mount: str
    """The path at which workloads see the volume."""
    here: str
    """The path at which this machine sees the volume."""

    def local(self, path: str) -> Path:
        """Return this machine's path for a path of the cluster. Raises UserError outside the volume."""
        normal = os.path.normpath(path)
        if not PurePosixPath(normal).is_relative_to(self.mount):
            raise UserError(f"{one_line(path)} is not on the cluster's volume, which is at {self.mount}.")
        return Path(self.here, PurePosixPath(normal).relative_to(self.mount))

    def read(self, path: str, offset: int, limit: int) -> bytes:
        """Read up to `limit` bytes of a file from `offset`; b"" if there is no file."""
        try:
            with open_regular(self.local(path)) as file:
                file.seek(offset)
                return file.read(limit)
        except FileNotFoundError:
            return b""

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file atomically. Raises OSError."""
        write_whole(self.local(path), content)


class JobNotes:
    """The files on the volume about one job. Raises UserError if the job name is invalid."""

    def __init__(self, volume: Volume, state: PurePosixPath, name: str) -> None:
        check_job_name(name)
        self.folder = state / "jobs" / name
        self.start_script = str(self.folder / "start.sh")
        self._volume = volume

    def prepare(self) -> None:
        """Write `start.sh`, the script that the pods run."""
        self._volume.write(self.start_script, _START_SCRIPT.read_bytes())

    def prepared_at(self) -> float | None:
        """Return when `start.sh` was last written, in Unix time; None if it was not: no pod can run then."""
        try:
            return self._volume.local(self.start_script).stat().st_mtime
        except FileNotFoundError:
            return None

    def submitted(self) -> RunaiJob | None:
        """Return the recorded job; None if there is no record yet, though Run:ai may have its workload."""
        text = self._volume.read(str(self.folder / "submitted.json"), 0, 1 << 16)
        return RunaiJob(**json.loads(text)) if text else None

    def write_submitted(self, submitted: RunaiJob) -> None:
        """Record the submitted job on the volume, so that later lookups need no request to Run:ai."""
        self._volume.write(
            str(self.folder / "submitted.json"), json.dumps(dataclasses.asdict(submitted), indent=1)
        )

    def write_stop(self, stop: Stop) -> None:
        """Record why the workload is about to be ended; an earlier record is kept."""
        if self.notes().stop is None:
            content = json.dumps({"state": stop.state.value, "reason": stop.reason})
            self._volume.write(str(self.folder / "stop.json"), content)

    def notes(self) -> Notes:
        """Return what the pods and the backend have recorded so far."""
        here = self._volume.local(str(self.folder))
        starts: dict[int, tuple[float, str]] = {}
        ends: list[PodEnd] = []
        stop = None
        for file in here.iterdir() if here.is_dir() else ():
            kind, _, rank = file.name.partition("-")
            with contextlib.suppress(ValueError, FileNotFoundError):  # half written: it comes whole next time
                if kind == "started" and rank.isdecimal():
                    at, node = file.read_text().split()
                    starts[int(rank)] = (float(at), node)
                elif kind == "ended" and rank.isdecimal():
                    at, code, how = file.read_text().split()
                    ends.append(PodEnd(int(rank), float(at), int(code), how))
                elif file.name == "stop.json":
                    content = json.loads(file.read_text())
                    stop = Stop(JobState(content["state"]), content["reason"])
        return Notes(starts=starts, ends=tuple(ends), stop=stop)
