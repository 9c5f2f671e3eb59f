"""The mini Slurm that tests share: one a session, real, in a state folder of its own."""

import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from steptime.clusters.connections import Connection
from steptime.mini_slurm import daemons, service
from steptime.mini_slurm.layout import SlurmLayout, login_command, login_connection


@dataclass(frozen=True)
class MiniSlurm:
    """A running cluster, and how tests reach it."""

    home: Path
    """Its state folder, for `slurm_faults.stop_daemon(home, "slurmctld")` and others."""

    @property
    def layout(self) -> SlurmLayout:
        """Its folder and ports."""
        return service.running(self.home)

    @property
    def login(self) -> Connection:
        """What Airflow would keep as the connection `mini_slurm`."""
        return login_connection(self.layout)

    async def connections(self, name: str) -> Connection:
        """For `open_cluster(config, slurm.connections)`: every name is this cluster's login."""
        return self.login

    def command(self, name: str, *arguments: str) -> str:
        """What one of Slurm's commands prints, run on this machine and not over ssh."""
        return daemons.command(self.layout, name, *arguments)

    def ssh(self, *command: str, stdin: str = "") -> str:
        """What a command prints that is run through a login."""
        done = subprocess.run(
            [*login_command(self.layout), shlex.join(command)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def slurm_of_session() -> Iterator[MiniSlurm]:
    """One cluster for all; ask for `mini_slurm` instead."""
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        home = Path(folder)
        try:
            service.up(home, print)
            yield MiniSlurm(home)
        finally:
            service.down(home, print)


@pytest.fixture
def mini_slurm(slurm_of_session: MiniSlurm) -> Iterator[MiniSlurm]:
    """The session's cluster. After a test what it has stopped is started and what it left queued is ended.

    Accounting is not emptied: know your jobs by names of their own.
    """
    yield slurm_of_session
    service.up(slurm_of_session.home, print)
    service.cancel_jobs(slurm_of_session.layout, print)
