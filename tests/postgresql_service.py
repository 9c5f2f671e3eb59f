"""A real PostgreSQL for tests, without network: a server that can be stopped, started and promoted."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from called import ended_if_killed

from steptime.store.database import close_engines

_START_S = 120


class PostgreSQL:
    """A server with its socket and data in a folder; its superuser `steptime` needs no password."""

    def __init__(self, folder):
        self.folder = folder
        self.url = f"postgresql://steptime@/postgres?host={folder}"
        self._server = None
        # PostgreSQL refuses to run as root.
        account = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        self._as_account = {"user": account.pw_uid, "group": account.pw_gid, "cwd": folder}
        os.chown(folder, account.pw_uid, account.pw_gid)
        self._run("initdb", "-D", "data", "-U", "steptime", "--auth=trust", "--no-sync", "-E", "UTF8")

    def start(self, *, standby=False):
        """Start the server; a standby refuses writes."""
        signal_file = self.folder / "data" / "standby.signal"
        signal_file.touch() if standby else signal_file.unlink(missing_ok=True)
        settings = {"listen_addresses": "", "unix_socket_directories": self.folder, "fsync": "off"}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [_programs() / "postgres", "-D", "data", *flags]
        with (self.folder / "server.log").open("ab") as log:
            self._server = subprocess.Popen(command, stderr=log, **self._as_account)
        deadline = time.monotonic() + _START_S
        ready = [_programs() / "pg_isready", "-q", "-h", self.folder]
        while subprocess.run(ready, check=False).returncode:
            if self._server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL did not start: {(self.folder / 'server.log').read_text()}")
            time.sleep(0.05)

    def stop(self, *, at_once=True):
        """Stop the server, by default as if it crashed."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT if at_once else signal.SIGINT)
            self._server.wait(timeout=_START_S)

    def restart(self):
        """Start the server if it is down."""
        if self._server is None or self._server.poll() is not None:
            self.start()

    def promote(self):
        """Make a standby accept writes, as a failover does."""
        self._run("pg_ctl", "promote", "-D", "data")

    def ended_if_killed(self):
        """Return a context that stops the server if this process is killed."""
        command = [_programs() / "pg_ctl", "stop", "-D", "data", "-m", "immediate"]
        return ended_if_killed(command, **self._as_account)

    def _run(self, *command):
        program, *arguments = command
        subprocess.run(
            [_programs() / program, *arguments], check=True, stdout=subprocess.DEVNULL, **self._as_account
        )


def _programs():
    """Return the folder of PostgreSQL's server programs, which Debian keeps off the PATH."""
    initdb = shutil.which("initdb")
    folders = [Path(initdb).resolve().parent] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.fail("PostgreSQL is missing, the store is tested on it: apt-get install -y postgresql")
    return folders[-1]


@contextmanager
def started_postgresql():
    """Yield a running server; it is stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="steptime-postgresql-"))
    try:
        server = PostgreSQL(folder)
        with server.ended_if_killed():
            try:
                server.start()
                yield server
            finally:
                close_engines()
                server.stop()
    finally:
        shutil.rmtree(folder)
