"""A workload of the stand-in: its pods are processes, and its phase follows from their states."""

import asyncio
import shlex
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from free_ports import free_port

from steptime.clusters.base import JobSpec, JobState
from steptime.clusters.local.cluster import LocalCluster

_FOR_EVER_S = 86_400


def written(at: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass
class StandInWorkload:
    """A workload; `cluster` runs its pods, each as a local job."""

    request: dict[str, Any]
    distributed: bool
    cluster: LocalCluster
    folder: Path
    dwell_s: Mapping[str, float]
    """Least seconds in the phases Creating and Initializing."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    phase: str = "Creating"
    phases: list[str] = field(default_factory=lambda: ["Creating"])
    """Every phase so far."""
    phase_at: float = field(default_factory=time.time)
    phase_message: str = ""
    forced: str = ""
    """A phase that a test has set."""
    created_at: float = field(default_factory=time.time)
    completed_at: float | None = None
    deleted_at: float | None = None
    desired: str = "Running"
    events: list[dict[str, Any]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    """Ranks whose node is lost."""
    running_pods: int = 0
    bringing_up: "asyncio.Task[None] | None" = None
    shown_at: float = 0
    """When lookups begin to show it, as lists lag behind."""

    @property
    def name(self) -> str:
        return str(self.request["name"])

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.request["spec"]
        return spec

    @property
    def pods(self) -> int:
        """Return the number of pods: the master and its workers, or one."""
        return int(self.spec.get("numWorkers", 1)) + 1 if self.distributed else 1

    def pod(self, rank: int) -> str:
        return f"{self.id}-{rank}"

    def enter(self, phase: str, message: str = "") -> None:
        self.phase_message = message
        if phase != self.phase:
            self.phase, self.phase_at = phase, time.time()
            self.phases.append(phase)

    async def bring_up(self) -> None:
        """Start the pods once the workload's objects are made."""
        while time.time() - self.created_at < self.dwell_s.get("Creating", 0):
            await asyncio.sleep(0.02)
            if self.phase != "Creating":
                return  # it failed meanwhile
        port = free_port()
        self.enter("Pending")
        for rank in range(self.pods):
            await self.cluster.submit(self._pod_spec(rank, port))

    async def refresh(self) -> None:
        """Update the phase from the states of the pods."""
        if self.phase in ("Creating", "Stopped", "Failed", "Completed") or self.deleted_at:
            return
        states = await self.cluster.poll([self.pod(rank) for rank in range(self.pods)])
        by_rank = {rank: states[self.pod(rank)] for rank in range(self.pods)}
        self.running_pods = sum(status.state is JobState.RUNNING for status in by_rank.values())
        if self.desired == "Stopped" or self.phase in ("Stopping", "Deleting"):
            return  # the end of the pods sets the phase
        if self.forced:
            self.enter(self.forced)
            return
        present = {rank: status for rank, status in by_rank.items() if rank not in self.lost}
        failed = [rank for rank, status in present.items() if status.state is JobState.FAILED]
        if failed:
            self._warn("BackoffLimitExceeded", f"pod {failed[0]} failed")
            await self._end_pods()
            self.completed_at = time.time()
            self.enter("Failed")
        elif self.lost:
            self.enter("Degraded", f"{len(self.lost)} of {self.pods} pods are gone")
        elif present[0].state is JobState.SUCCEEDED:
            await self._end_pods()
            self.completed_at = time.time()
            for phase in ("Initializing", "Running", "Completed"):
                if phase not in self.phases:
                    self.enter(phase)
        elif any(status.state in (JobState.QUEUED, JobState.UNKNOWN) for status in present.values()):
            self.enter("Pending", f"{self._gpus()} GPUs are not free")
        else:
            self._advance()

    def _advance(self) -> None:
        """Once all pods are there, go through Initializing, where images are pulled, to Running."""
        if "Initializing" not in self.phases:
            self.enter("Initializing")
        if self.phase in ("Initializing", "Degraded", "Unknown") and (
            time.time() - self.phase_at >= self.dwell_s.get("Initializing", 0)
        ):
            self.enter("Running")

    async def suspend(self) -> None:
        """End the pods; the workload stays."""
        self.desired = "Stopped"
        self.enter("Stopping")
        await self._end_pods()
        self.enter("Stopped")

    async def delete(self) -> None:
        """End the pods; the workload leaves the list."""
        self.enter("Deleting")
        await self._end_pods()
        self.deleted_at = time.time()

    async def lose(self, rank: int) -> None:
        """Lose the node of one pod."""
        self.lost.add(rank)
        self._warn("NodeLost", f"the node of pod {rank} does not answer")
        await self.cluster.cancel(self.pod(rank))

    async def _end_pods(self) -> None:
        if self.bringing_up is not None and asyncio.current_task() is not self.bringing_up:
            await self.bringing_up
        for rank in range(self.pods):
            await self.cluster.cancel(self.pod(rank))

    def _gpus(self) -> int:
        return int((self.spec.get("compute") or {}).get("gpuDevicesRequest", 0)) * self.pods

    def _warn(self, reason: str, message: str) -> None:
        self.events.insert(
            0,
            {
                "createdAt": written(time.time()),
                "id": str(uuid.uuid4()),
                "type": "Warning",
                "clusterId": self.request["clusterId"],
                "message": message,
                "reason": reason,
                "source": "stand-in",
                "involvedObject": {
                    "uid": self.id,
                    "kind": "PyTorchJob" if self.distributed else "Job",
                    "name": self.name,
                    "namespace": "runai-test",
                },
            },
        )

    def _pod_spec(self, rank: int, port: int) -> JobSpec:
        variables = {
            entry["name"]: entry.get("value", f"node-{rank}")  # a podFieldRef: only the node's name is known
            for entry in self.spec.get("environmentVariables") or ()
        }
        if self.distributed:  # variables that the PyTorch operator sets
            variables |= {
                "WORLD_SIZE": str(self.pods),
                "RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
        command = shlex.split(f"{self.spec['command']} {self.spec.get('args') or ''}")
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        compute = self.spec.get("compute") or {}
        return JobSpec(
            name=self.pod(rank),
            script=f"#!/usr/bin/env bash\n{exports}exec {shlex.join(command)}\n",
            directory=str(self.folder / self.pod(rank)),
            log_path=str(self.folder / self.pod(rank) / "log"),
            slots=max(1, int(compute.get("gpuDevicesRequest", 0))),
            time_limit_s=_FOR_EVER_S,
        )
