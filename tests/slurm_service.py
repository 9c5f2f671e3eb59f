"""The mini Slurm that tests share: a real one in a state folder of its own, started once."""

import getpass
import os
import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from called import CLI, ended_if_killed

from steptime.mini_slurm import daemons, service
from steptime.mini_slurm.layout import login_command, login_connection


@dataclass(frozen=True)
class MiniSlurm:
    """A running cluster, with ways for tests to reach it."""

    home: Path
    """The state folder, for `slurm_faults.stop_daemon(home, "slurmctld")` and others."""

    @property
    def layout(self):
        """Return the cluster's folder and ports."""
        return service.running(self.home)

    @property
    def login(self):
        """Return the connection `mini_slurm` as Airflow would have it."""
        return login_connection(self.layout)

    async def connections(self, name):
        """Return the cluster's login for any name, for `open_cluster(config, slurm.connections)`."""
        return self.login

    def command(self, name, *arguments):
        """Return the output of one of Slurm's commands, run on this machine and not over ssh."""
        return daemons.command(self.layout, name, *arguments)

    def ssh(self, *command, stdin=""):
        """Return the output of a command that is run over ssh."""
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
def slurm_of_session():
    """Yield the cluster that all tests share; tests use `mini_slurm` instead."""
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        home = Path(folder)
        with ended_if_killed([CLI, "slurm", "down"], env=os.environ | {"STEPTIME_HOME": folder}):
            try:
                service.up(home, print)
                slurm = MiniSlurm(home)
                if getpass.getuser() != "root":  # who has an account from the start
                    slurm.command("sacctmgr", "-i", "add", "user", getpass.getuser(), "account=root")
                yield slurm
            finally:
                service.down(home, print)


@pytest.fixture
def mini_slurm(slurm_of_session):
    """Yield the shared cluster; after a test start what it stopped and end what it left queued.

    The accounting is not emptied: give your jobs names of their own.
    """
    yield slurm_of_session
    service.up(slurm_of_session.home, print)
    service.cancel_jobs(slurm_of_session.layout, print)
