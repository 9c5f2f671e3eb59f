"""A Slurm that is in a federation: a real sibling cluster of the test's own would take its jobs."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from called import captured
from free_ports import free_port
from slurm_service import MiniSlurm

from steptime.clusters.base import JobState
from steptime.clusters.slurm.cluster import SlurmCluster

from .conftest import GatedJob, MakeGated, end_of, eventually

pytestmark = pytest.mark.slurm


class Sibling:
    """A second controller with one node, which shares the mini Slurm's accounting and federation."""

    def __init__(self, slurm: MiniSlurm, folder: Path) -> None:
        self._slurm = slurm
        self._conf = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        etc = slurm.layout.root / "etc"
        ports = {"SlurmctldPort": free_port(), "Port": free_port()}
        changed = [
            *("ClusterName=sibling", f"SlurmctldPort={ports['SlurmctldPort']}"),
            *(f"StateSaveLocation={folder}", f"SlurmdSpoolDir={folder}", f"TmpFS={folder}"),
            *(f"{name}PidFile={folder}/{name}.pid" for name in ("Slurmctld", "Slurmd")),
            *(f"{name}LogFile={folder}/{name}.log" for name in ("Slurmctld", "Slurmd")),
            f"NodeName=sibling1 NodeHostname={_hostname(etc)} NodeAddr=127.0.0.1 Port={ports['Port']} "
            "CPUs=64 RealMemory=512000 Gres=gpu:8",
        ]
        names = tuple(f"{line.partition('=')[0]}=" for line in changed)
        kept = (line for line in (etc / "slurm.conf").read_text().splitlines() if not line.startswith(names))
        self._conf.write_text("\n".join([*changed, *kept, ""]))
        gres = (etc / "gres.conf").read_text().replace("node[1-8]", "sibling1")
        (folder / "gres.conf").write_text(gres)
        shutil.copy(etc / "plugstack.conf", folder)

    def start(self) -> None:
        for command in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "sibling1"]):
            program = shutil.which(command[0], path="/usr/sbin:/usr/local/sbin")
            assert program
            self._daemons.append(subprocess.Popen([program, *command[1:]], env=self._environment))

    def federate(self) -> None:
        self._slurm.command("sacctmgr", "-i", "add", "federation", "both", "clusters=mini,sibling")

    def stop(self) -> None:
        self.command("scancel", "--me")
        self._slurm.command("sacctmgr", "-i", "modify", "cluster", "mini,sibling", "set", "federation=")
        self._slurm.command("sacctmgr", "-i", "delete", "federation", "both")
        for daemon in reversed(self._daemons):
            daemon.terminate()
            daemon.wait()
        self._slurm.command("sacctmgr", "-i", "delete", "cluster", "sibling")

    def command(self, *command: str) -> str:
        """Return what one of Slurm's commands prints there, or nothing if the controller does not answer."""
        done = captured(command, env=self._environment)
        return done.stdout

    @property
    def _environment(self) -> dict[str, str]:
        return {**self._slurm.layout.environment, "SLURM_CONF": str(self._conf)}


def _hostname(etc: Path) -> str:
    text = (etc / "slurm.conf").read_text()
    return text.partition("NodeHostname=")[2].split()[0]


@pytest.fixture
def sibling(mini_slurm: MiniSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sibling]:
    sibling = Sibling(mini_slurm, tmp_path_factory.mktemp("sibling"))
    sibling.start()
    yield sibling
    mini_slurm.command("scontrol", "update", "partitionname=batch", "state=up")
    sibling.stop()


async def test_a_job_stays_on_its_cluster_and_one_that_a_sibling_has_taken_is_live(
    sibling: Sibling, mini_slurm: MiniSlurm, slurm: SlurmCluster, make_gated: MakeGated
) -> None:
    """Jobs submitted by hand go to the sibling at once, as nothing can start on the cluster itself."""

    def free(job: GatedJob) -> GatedJob:
        script = job.spec.script.replace("--nodelist=node1 ", "")
        job.spec = job.spec.model_copy(update={"script": script})
        return job

    await eventually(lambda: "idle" in sibling.command("sinfo", "-h", "-o", "%T"))
    sibling.federate()
    await eventually(lambda: "Sibling:" in mini_slurm.command("scontrol", "show", "federation"))
    mini_slurm.command("scontrol", "update", "partitionname=batch", "state=down")
    ours, taken, cancelled = (free(make_gated(name)) for name in ("ours", "taken", "cancelled"))
    await slurm.submit(ours.spec)
    for job in (taken, cancelled):
        job.folder.mkdir(parents=True)
        script = job.folder / "job.sh"
        script.write_text(job.spec.script + "exit 3\n")
        mini_slurm.command("sbatch", f"--job-name={job.spec.name}", f"--chdir={job.folder}", str(script))
    await eventually(lambda: taken.pid and cancelled.pid)
    await eventually(lambda: mini_slurm.command("squeue", "-h", "--states=REVOKED").count("\n") >= 2)
    for name in ("taken", "cancelled"):
        status = (await slurm.poll([name]))[name]
        assert status.state is JobState.RUNNING
        assert status.reason == "another cluster of the federation has taken it"
    assert (await slurm.poll(["ours"]))["ours"].state is JobState.QUEUED
    assert "ours" not in sibling.command("squeue", "-h", "--local", "-o", "%j")

    await slurm.cancel("cancelled")
    assert (await end_of(slurm, "cancelled")).state is JobState.CANCELLED
    taken.let_go()
    status = await end_of(slurm, "taken")
    assert (status.state, status.exit_code, status.nodes) == (JobState.FAILED, 3, ("sibling1",))

    mini_slurm.command("scontrol", "update", "partitionname=batch", "state=up")
    ours.let_go()
    assert (await end_of(slurm, "ours")).state is JobState.SUCCEEDED
