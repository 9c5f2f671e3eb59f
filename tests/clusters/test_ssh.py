"""Faults of a login node behind ssh: logins, dropped and hanging connections, long output, and refusals."""

import asyncio
import gc
import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest

from steptime.clusters.slurm import ssh
from steptime.clusters.slurm.ssh import LoginNode
from steptime.errors import LoginRefused, NotRegular, OutOfReach, SystemFailure

from .conftest import eventually
from .ssh_site import Host, Keys, Site, connection, known

pytestmark = pytest.mark.long


@dataclass
class LoginHost:
    """An sshd of the test's own, and the key that it admits."""

    sshd: Host
    keys: Keys

    def open(self, **extra):
        """Log in at the first call, with keywords added to the connection's extra."""
        return LoginNode("login", known({"login": connection(self.sshd, self.keys, **extra)}))


def login_host(site, *options):
    keys = site.keys("user")
    return LoginHost(site.host("login", *options, authorized=keys.public), keys)


@pytest.fixture(scope="module")
def host_of_module(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("sshd"))
    yield login_host(site)
    site.stop()


@pytest.fixture
def host(host_of_module):
    yield host_of_module
    host_of_module.sshd.stop()
    host_of_module.sshd.start()


@pytest.fixture
async def open_node(host):
    """Yield a function that logs in, with keywords added to the connection's extra; all logins are closed."""
    nodes = []

    def login(**extra):
        nodes.append(host.open(**extra))
        return nodes[-1]

    yield login
    for node in nodes:
        await node.close()


@pytest.fixture
async def own_sshd(site):
    """Yield a function that starts an sshd of the test's own with these options and logs in."""
    nodes = []

    def login(*options):
        nodes.append(login_host(site, *options).open())
        return nodes[-1]

    yield login
    for node in nodes:
        await node.close()


async def test_a_dropped_connection_is_made_anew_by_the_next_call(host, open_node, tmp_path):
    node = open_node()
    for _ in range(2):
        assert (await node.run(["echo", "here"], timeout_s=20)).stdout == "here\n"
        await node.write(str(tmp_path / "file"), b"here")
        host.sshd.drop_connections()
        assert await node.read(str(tmp_path / "file"), 0, 10) == b"here"
        host.sshd.drop_connections()


async def test_a_read_that_is_given_up_leaves_no_failure_that_nobody_awaits(open_node, tmp_path, monkeypatch):
    """The log of a cancelled run is given up so; asyncio would log a traceback for each such failure."""
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    (log := tmp_path / "log").write_bytes(b"line\n")
    node = open_node()
    with monkeypatch.context() as patched:
        ask = asyncssh.sftp.SFTPClientHandler.read

        async def give_up_and_ask(*arguments):
            while reads:
                reads.pop().cancel()
            return await ask(*arguments)

        patched.setattr(asyncssh.sftp.SFTPClientHandler, "read", give_up_and_ask)
        reads = [asyncio.create_task(node.read(str(log), 0, 1 << 20))]
        done, _ = await asyncio.wait(reads)
    assert done.pop().cancelled()
    assert await node.read(str(log), 0, 1 << 20) == b"line\n"
    gc.collect()
    assert not complaints


async def test_a_command_that_takes_too_long_leaves_no_failure_that_nobody_awaits(
    open_node,
):
    """A process that left the command's group keeps its output open."""
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    with pytest.raises(SystemFailure, match=r"bash was ended after 1 s$"):
        await open_node().run(["bash", "-c", "setsid sleep 30 & wait"], timeout_s=1)
    for _ in range(10):  # turns of the event loop, in which the cancelled readers end
        await asyncio.sleep(0)
    gc.collect()
    assert not complaints


async def test_a_connection_that_drops_in_mid_output_is_a_failure_and_no_exit_code(host, open_node):
    node = open_node()
    heard = []

    def drop(line):
        heard.append(line)
        host.sshd.drop_connections()

    with pytest.raises(OutOfReach, match=r"connection to the login node .* was lost while sh ran"):
        await node.run(["sh", "-c", "echo half; sleep 5; echo whole"], timeout_s=20, on_output=drop)
    assert heard == ["half"]
    assert (await node.run(["true"], timeout_s=20)).exit_code == 0


async def test_more_commands_at_once_than_sessions_share_one_connection(host, open_node, tmp_path):
    """sshd allows 10 sessions a connection by default, as it does here."""
    node = open_node()
    (tmp_path / "log").write_bytes(b"line\n")
    script = "echo $SSH_CONNECTION; sleep 0.2"
    commands = [node.run(["sh", "-c", script], timeout_s=60) for _ in range(24)]
    reads = [node.read(str(tmp_path / "log"), 0, 100) for _ in range(100)]
    done = await asyncio.gather(*commands)
    assert {completed.exit_code for completed in done} == {0}
    assert len({completed.stdout for completed in done}) == 1
    assert set(await asyncio.gather(*reads)) == {b"line\n"}


@contextmanager
def hanging_file(path):
    """Make a file whose open(2) hangs, a FIFO without a writer; let it go at the end."""
    os.mkfifo(path)
    yield str(path)
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


async def open_file(node, path):
    """Open a file as `read` does, but without its check that it is a regular one."""

    async def use(files):
        await files.open(path, "rb")

    await node._with_files(f"{path} could not be read", use)


@pytest.mark.parametrize("kind", ["fifo", "link to /dev/zero", "folder"])
async def test_only_a_regular_file_is_read(open_node, tmp_path, kind):
    path = tmp_path / "log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    node = open_node()
    with pytest.raises(NotRegular, match=r"log on .* is not a regular file"):
        await node.read(str(path), 0, 1 << 20)
    (other := tmp_path / "other").write_bytes(b"line\n")
    assert await node.read(str(other), 0, 9) == b"line\n", "the connection is still there"


async def test_a_file_that_hangs_fails_and_holds_up_no_other_for_ever(open_node, tmp_path, monkeypatch):
    """Each of its own reads fails, and costs the connection; what waited behind it is asked for again."""
    usual = ssh._FILE_TIMEOUT_S
    log = tmp_path / "log"
    log.write_bytes(b"line\n")
    node = open_node()
    assert await node.read(str(log), 0, 9) == b"line\n"
    with hanging_file(tmp_path / "hanging") as path:
        for _ in range(3):
            # Only the request that hangs has a short limit: on a busy machine others take seconds, too.
            monkeypatch.setattr(ssh, "_FILE_TIMEOUT_S", 2)
            hanging = asyncio.create_task(open_file(node, path))
            beside = asyncio.create_task(node.read(str(log), 0, 9))
            await asyncio.sleep(0.1)
            monkeypatch.setattr(ssh, "_FILE_TIMEOUT_S", usual)
            queued = [node.read(str(log), 0, 9), node.write(str(tmp_path / "new"), b"new")]
            waiting = asyncio.gather(*queued)
            with pytest.raises(SystemFailure, match=r"hanging could not be read .* no answer in 2 s"):
                await hanging
            assert await waiting == [b"line\n", None]
            assert await node.read(str(log), 0, 9) == b"line\n"
            assert await beside == b"line\n"
    assert (tmp_path / "new").read_bytes() == b"new"
    assert (await node.run(["true"], timeout_s=20)).exit_code == 0


async def test_a_file_server_that_does_not_begin_holds_nobody_up_for_ever(own_sshd, tmp_path, monkeypatch):
    """As when the home directory hangs: each of many requests fails, whenever it was made."""
    monkeypatch.setattr(ssh, "_FILE_TIMEOUT_S", 1)
    hangs = tmp_path / "hangs"
    server = tmp_path / "sftp-server"
    waits = f"while [ -e {hangs} ]; do sleep 0.1; done"
    server.write_text(f"#!/bin/sh\n{waits}\nexec /usr/lib/openssh/sftp-server\n")
    server.chmod(0o755)
    node = own_sshd(f"Subsystem sftp {server}")
    (log := tmp_path / "log").write_bytes(b"line\n")
    hangs.touch()
    reads = [node.read(str(log), 0, 9) for _ in range(3)]
    async with asyncio.timeout(60):
        failures = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(failure, SystemFailure) for failure in failures)
    hangs.unlink()
    monkeypatch.setattr(ssh, "_FILE_TIMEOUT_S", 60)
    assert await node.read(str(log), 0, 9) == b"line\n"


async def test_a_read_of_a_file_that_hangs_may_be_cancelled(open_node, tmp_path, monkeypatch):
    """The server still hangs at it, and is given up in time for those who ask it next."""
    monkeypatch.setattr(ssh, "_FILE_TIMEOUT_S", 2)
    (log := tmp_path / "log").write_bytes(b"line\n")
    node = open_node()
    with hanging_file(tmp_path / "hanging") as path:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(open_file(node, path), timeout=0.5)
        assert await node.read(str(log), 0, 9) == b"line\n"


async def test_a_file_that_hangs_once_it_is_open(open_node, monkeypatch):
    """Closing it is not answered either, and not waited for."""
    monkeypatch.setattr(ssh, "_FILE_TIMEOUT_S", 2)
    node = open_node()
    frozen = []

    async def read_of_frozen(files):
        async with files.open("/etc/hostname", "rb") as file:
            frozen.append(int(str(await files.readlink("/proc/self"))))
            os.kill(frozen[0], signal.SIGSTOP)
            return await file.read(9)

    try:
        with pytest.raises(SystemFailure, match=r"it could not be read .* no answer in 2 s"):
            await node._with_files("it could not be read", read_of_frozen)
        assert await node.read("/etc/hostname", 0, 1)
    finally:
        os.kill(frozen[0], signal.SIGKILL)


async def test_a_file_server_that_dies_is_started_again(open_node):
    """The connection stays, and so do the commands that run in it."""
    node = open_node()
    where = (await node.run(["printenv", "SSH_CONNECTION"], timeout_s=20)).stdout

    async def die(files):
        os.kill(int(str(await files.readlink("/proc/self"))), signal.SIGKILL)
        await files.stat("/etc/hostname")

    with pytest.raises(OutOfReach, match="it could not be read"):
        await node._with_files("it could not be read", die)
    assert await node.read("/etc/hostname", 0, 1)
    assert (await node.run(["printenv", "SSH_CONNECTION"], timeout_s=20)).stdout == where


async def test_a_flood_of_output_is_stopped(open_node, monkeypatch):
    monkeypatch.setattr("steptime.clusters.command_output.LONGEST_OUTPUT", 1 << 20)
    node = open_node()
    with pytest.raises(SystemFailure, match="yes was ended: it wrote more than 1 MiB"):
        await node.run(["yes"], timeout_s=60)
    assert (await node.run(["true"], timeout_s=20)).exit_code == 0


async def test_what_a_login_shell_says_by_itself_is_not_the_commands(own_sshd, tmp_path):
    """The greeting comes from a file that bash reads before a command, like a .bashrc: BASH_ENV names it."""
    greeting = tmp_path / "greeting"
    greeting.write_text("echo Welcome to the cluster; echo quota: 93 % >&2\n")
    node = own_sshd(f"SetEnv SHLVL=1 BASH_ENV={greeting}")
    done = await node.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=20)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert (await node.run(["sh", "-c", "kill -SEGV $$"], timeout_s=60)).exit_code == 128 + signal.SIGSEGV


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            "ForceCommand echo This account is currently not available.; exit 1",
            "does not start commands: its login shell ended with exit code 1 and said: This account is curr",
        ),
        (
            'ForceCommand tcsh -c "$SSH_ORIGINAL_COMMAND"',
            "login shell ended with .* It must be a POSIX shell, such as bash or zsh, and not csh or fish",
        ),
        (
            """ForceCommand bash -c 'exec bash -c "${SSH_ORIGINAL_COMMAND//\\\\\\\\/\\\\}"'""",
            "said: it changes quoted text. It must be a POSIX shell",
        ),
        ("MaxSessions 1", "allows only 1 sessions in one connection .*MaxSessions"),
        (
            "Subsystem sftp sh -c 'echo Welcome to the cluster; exec /usr/lib/openssh/sftp-server'",
            "no SFTP server answers on .*login shell prints text",
        ),
    ],
)
async def test_a_login_node_that_cannot_work_says_why(own_sshd, option, said):
    node = own_sshd(option)

    async def use():
        if not option.startswith("ForceCommand"):
            await node.read("/etc/hostname", 0, 9)
        await node.run(["true"], timeout_s=60)

    with pytest.raises(LoginRefused, match=said):
        await use()


async def test_a_session_that_others_have_taken_is_asked_for_again_later(own_sshd, monkeypatch):
    monkeypatch.setattr(ssh, "_OPENING_PAUSES_S", (0.0,))
    node = own_sshd("MaxSessions 3")
    await node.read("/etc/hostname", 0, 9)
    taken = [asyncio.create_task(node.run(["sleep", "60"], timeout_s=60)) for _ in range(2)]
    await eventually(lambda: node._commands == len(taken))
    with pytest.raises(OutOfReach, match="opens no session"):
        await node.run(["true"], timeout_s=60)
    for command in taken:
        command.cancel()
    await asyncio.gather(*taken, return_exceptions=True)


async def test_arguments_arrive_unchanged(open_node):
    node = open_node()
    arguments = ["two\nlines", "!!", "back\\slash \\\\ \\n", "'\"$HOME`", "", "é*?"]
    for some in (["plain"], *([one] for one in arguments), arguments):
        done = await node.run(["sh", "-c", 'for one; do printf %s "$one|"; done', "sh", *some], timeout_s=60)
        assert done.stdout == "".join(f"{one}|" for one in some), done


async def test_the_host_key_of_a_known_hosts_file_will_do(host, open_node, tmp_path):
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{host.sshd.port} {host.sshd.keys.public}\n")
    node = open_node(host_key=None, known_hosts=str(known_hosts))
    assert (await node.run(["true"], timeout_s=20)).exit_code == 0


async def test_many_calls_leave_no_descriptor_open(open_node, tmp_path):
    node = open_node()

    async def use():
        await node.write(str(tmp_path / "file"), b"x")
        await node.read(str(tmp_path / "file"), 0, 1)
        await node.run(["true"], timeout_s=20)
        return len(list(Path("/proc/self/fd").iterdir()))

    first = await use()
    for _ in range(10):
        last = await use()
    assert last <= first
