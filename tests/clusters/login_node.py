"""An sshd of a test's own in front of the mini Slurm: stopping, hanging and dropping it disturbs nobody."""

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from free_ports import free_port
from slurm_service import MiniSlurm

from steptime.clusters.connections import Connection

_READY_S = 90


class LoginNode:
    """A real sshd as the mini Slurm's, with `bin` before everything else in the PATH of its logins."""

    def __init__(
        self, slurm: MiniSlurm, folder: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self.port = free_port()
        lines = (slurm.layout.root / "etc/sshd_config").read_text().splitlines()
        own = {
            "ListenAddress": f"127.0.0.1:{self.port}",
            "PidFile": str(folder / "sshd.pid"),
        }
        kept = [f"{word} {own.get(word, rest)}" for word, _, rest in (line.partition(" ") for line in lines)]
        more = "".join(f' "{name}={value}"' for name, value in (environment or {}).items())
        text = "\n".join(
            line.replace('"PATH=', f'"PATH={self.bin}:') + (more if line.startswith("SetEnv") else "")
            for line in kept
            if not line.startswith(("MaxSessions", "MaxStartups"))  # as of most clusters: 10 of each
        )
        self._config = folder / "sshd_config"
        self._config.write_text(f"{text}\n")
        self._login = slurm.login
        self._sshd: subprocess.Popen[bytes] | None = None
        self.start()

    def login(self, **extra: Any) -> Connection:
        """The login to it; keywords are further fields of the connection's extra."""
        return replace(self._login, port=self.port, extra={**self._login.extra, **extra})

    async def connections(self, name: str) -> Connection:
        return self.login()

    def command(self, name: str, script: str) -> None:
        """Put a program before the one of the same name; `$real` is that one."""
        real = shutil.which(name)
        path = self.bin / name
        path.write_text(f"#!/bin/sh\nreal={real}\n{script}\n")
        path.chmod(0o755)

    def start(self) -> None:
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

    def drop_connections(self) -> None:
        """Kill what serves the logins; commands that they started go on."""
        assert self._sshd
        for child in psutil.Process(self._sshd.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name() == "sshd":
                    child.kill()

    def stop(self) -> None:
        if self._sshd:
            self.resume()
            self.drop_connections()
            self._sshd.terminate()
            self._sshd.wait()
            self._sshd = None

    def hang(self) -> None:
        """Take connections, and never say a word."""
        assert self._sshd
        psutil.Process(self._sshd.pid).suspend()

    def resume(self) -> None:
        assert self._sshd
        psutil.Process(self._sshd.pid).resume()
