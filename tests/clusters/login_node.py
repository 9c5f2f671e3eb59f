"""An sshd of the test's own in front of the mini Slurm: to stop, hang or drop it disturbs no other test."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
from free_ports import free_port

_READY_S = 90


class Sshd:
    """A real sshd on a free port of the loopback interface, with a configuration of its own."""

    def __init__(self, folder, lines):
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._config = folder / "sshd_config"
        listen = [f"ListenAddress 127.0.0.1:{self.port}", f"PidFile {folder}/sshd.pid"]
        self._lines = "\n".join([*listen, *lines, ""])
        self._sshd = None
        self.start()

    @property
    def logins(self):
        """Return the number of connections that it serves now."""
        assert self._sshd
        return len(psutil.Process(self._sshd.pid).children())

    def start(self, *, admits=True):
        """Start it; with `admits=False` it refuses every login."""
        self._config.write_text(self._lines if admits else f"DenyUsers *\n{self._lines}")
        if os.geteuid() == 0:  # root's sshd needs this folder, which Debian's service would make
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
        assert sshd
        self._sshd = subprocess.Popen([sshd, "-D", "-e", "-f", self._config], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert time.monotonic() < deadline, "sshd does not listen"
                time.sleep(0.02)
            else:
                return

    def drop_connections(self):
        """Kill the processes that serve the logins; commands that they started go on."""
        for child in self._children():
            with suppress(psutil.NoSuchProcess):
                if child.name().startswith("sshd"):  # from OpenSSH 9.8 on it is sshd-session
                    child.kill()

    def stop(self):
        if self._sshd:
            self.resume()
            self.drop_connections()
            self._sshd.terminate()
            self._sshd.wait()
            self._sshd = None

    def hang(self):
        """Accept connections, but never answer."""
        assert self._sshd
        psutil.Process(self._sshd.pid).suspend()

    def freeze(self):
        """Stop answering, on open connections as well."""
        self.hang()
        for child in self._children():
            child.suspend()

    def resume(self):
        assert self._sshd
        for process in (psutil.Process(self._sshd.pid), *self._children()):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _children(self):
        assert self._sshd
        return psutil.Process(self._sshd.pid).children(recursive=True)


class LoginNode(Sshd):
    """A real sshd like the mini Slurm's, with `bin` at the front of its logins' PATH."""

    def __init__(
        self,
        slurm,
        folder,
        *,
        environment=None,
        options=(),
    ):
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._login = slurm.login
        more = "".join(f' "{name}={value}"' for name, value in (environment or {}).items())
        set_here = tuple(option.split()[0] for option in options)
        lines = (slurm.layout.root / "etc/sshd_config").read_text().splitlines()
        changed = (  # without limits, so that sshd's defaults apply: 10 each
            line.replace('"PATH=', f'"PATH={self.bin}:') + (more if line.startswith("SetEnv") else "")
            for line in lines
            if not line.startswith(("ListenAddress", "PidFile", "MaxSessions", "MaxStartups", *set_here))
        )
        super().__init__(folder, [*options, *changed])

    def login(self, **extra):
        """Return the login to it; keywords are added to the connection's extra."""
        return replace(self._login, port=self.port, extra={**self._login.extra, **extra})

    async def connections(self, name):
        return self.login()

    def command(self, name, script):
        """Put a script in front of the program of that name, which it can call as `$real`."""
        real = shutil.which(name)
        path = self.bin / name
        path.write_text(f"#!/bin/sh\nreal={real}\n{script}\n")
        path.chmod(0o755)
