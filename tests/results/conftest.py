"""A real PostgreSQL for the store's tests: a temporary cluster of its own, without network."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from steptime.results.database import close_engines

_START_S = 120


def _programs() -> Path:
    """The folder of PostgreSQL's server programs, which Debian keeps off the PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        pytest.fail("PostgreSQL is missing, the store is tested on it: apt-get install -y postgresql")
    return folders[-1]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Path]:
    """The folder with the socket of a running server; its superuser is `steptime`, who needs no password."""
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="steptime-postgresql-"))
    # PostgreSQL refuses to run as root.
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    os.chown(folder, account.pw_uid, account.pw_gid)
    as_account: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "cwd": folder}
    data = folder / "data"
    try:
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", "steptime", "--auth=trust", "--no-sync", "-E", "UTF8"],
            check=True,
            stdout=subprocess.DEVNULL,
            **as_account,
        )
        settings = {"listen_addresses": "", "unix_socket_directories": folder, "fsync": "off"}
        flags = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (folder / "server.log").open("wb") as log:
            server = subprocess.Popen([programs / "postgres", "-D", data, *flags], stderr=log, **as_account)
        try:
            _wait_until_ready(programs, folder, server)
            yield folder
        finally:
            close_engines()
            server.send_signal(signal.SIGQUIT)  # at once: nothing of it is needed any more
            server.wait(timeout=_START_S)
    finally:
        shutil.rmtree(folder)


def _wait_until_ready(programs: Path, folder: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while subprocess.run([programs / "pg_isready", "-q", "-h", folder], check=False).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"PostgreSQL did not start: {(folder / 'server.log').read_text()}")
        time.sleep(0.05)


@pytest.fixture
def postgresql_url(postgresql: Path) -> Iterator[str]:
    """The address of an empty database: the only one, as to make another takes far longer than this."""
    url = f"postgresql://steptime@/postgres?host={postgresql}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    yield url
    close_engines()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store: every test that takes it runs on both kinds of database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'steptime.db'}"
    return str(request.getfixturevalue("postgresql_url"))
