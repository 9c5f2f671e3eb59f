"""Run commands and access files on a login node over one ssh connection, which stays open.

Callers give commands as lists of arguments; only this module quotes them for the login shell. Files are
accessed over SFTP, which is faster than a command because no login shell starts first.

OpenSSH's SFTP server handles one request after the other. A file on a file system that hangs therefore holds
up all other files; when its time limit is over, the connection is dropped and the next call opens another.
"""

import asyncio
import contextlib
import logging
import math
import posixpath
import secrets
import shlex
import signal
import stat
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

import asyncssh

from steptime.clusters.base import CommandResult
from steptime.clusters.command_output import collect
from steptime.clusters.connections import Connections
from steptime.clusters.slurm.ssh_login import describe_error
from steptime.clusters.slurm.ssh_route import reach
from steptime.errors import LoginRefused, NotRegular, OutOfReach, SystemFailure, UserError, one_line

_FAREWELL_S = 10.0
_COMMANDS_AT_ONCE = 8
"""Most commands at once: of the 10 sessions that sshd by default serves per connection, one is for files and
one for killing a command."""
_FILE_TIMEOUT_S = 60
"""Time limit of one call for a file, which opens it, reads or writes it, and closes it."""

_SFTP_LOST = (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection)
_LOST = (*_SFTP_LOST, asyncssh.ConnectionLost)

_OPENING_PAUSES_S = (0.1, 0.5, 2.0, 0.0)
"""Pauses between the tries to open a session, in seconds."""

_BEGIN = "steptime-begin:"
_QUOTED_DIFFERENTLY = "\\\\!\n"
"""Four characters, whose single quotes csh and fish read differently from POSIX shells."""
# The first argument shows whether the login shell passes arguments on unchanged. What that shell prints on
# its own comes before the lines of _BEGIN, and is not the command's. The process id is there to end the
# command, as sshd passes no signals on to a session of root's; if the connection is lost, `timeout` ends it.
# Slurm's variables change what its commands do, as SQUEUE_PARTITION and SBATCH_ACCOUNT: only those that lead
# to Slurm stay. Its commands print times as Unix seconds.
_WRAPPER = (
    'if [ ${#1} != 4 ]; then echo "it changes quoted text" >&2; exit 1; fi; shift; '
    f"echo {_BEGIN}; echo {_BEGIN}$$ >&2; unset $(env | cut -d= -f1 | "
    "grep -xE '(SLURM|SBATCH|SRUN|SQUEUE|SACCT|SCANCEL|SINFO|SCONTROL)_[A-Za-z0-9_]+' | "
    "grep -vxE 'SLURM_(CONF|CONF_SERVER|JWT|SACK_[A-Z]+)'); export SLURM_TIME_FORMAT=%s; "
    'exec timeout -s KILL "$@"'
)
_PROBE = r"""
folder=$1
while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
file=$folder/.steptime-probe.$$
LC_ALL=C dd if=/dev/zero of="$file" bs=4096 count=1 conv=fsync status=none
code=$?
rm -f "$file"
exit "$code"
"""
_LEAST_SESSIONS = 3
"""Fewest sessions per connection: one for files, one for a command, and one to kill it."""
_AFTER_CONNECTION_LOSS_S = 10

Done = TypeVar("Done")

if logging.getLogger("asyncssh").level == logging.NOTSET:
    asyncssh.set_log_level(logging.WARNING)  # at INFO it logs every command


class LoginNode:
    """Runs commands and accesses files on a login node of a cluster: the first one that answers.

    Nothing is connected before the first call. After a dropped connection the next call reconnects: it tries
    `login_nodes` in order, or, if there are none, the host of the connection in Airflow. See `ssh_route`.
    """

    def __init__(self, name: str, connections: Connections, login_nodes: Sequence[str] = ()) -> None:
        self._name = name
        self._connections = connections
        self._login_nodes = login_nodes
        self._connecting = asyncio.Lock()
        self._ssh: asyncssh.SSHClientConnection | None = None
        self._files: asyncssh.SFTPClient | None = None
        self._opening_files = asyncio.Lock()
        self._file_calls: set[asyncio.Task[Any]] = set()
        self._sessions = asyncio.Semaphore(_COMMANDS_AT_ONCE)
        self._commands = 0
        """Number of running commands."""
        self._address = name

    async def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        for call in self._file_calls:  # left by cancelled callers; they would connect again
            call.cancel()
        ssh, self._ssh, self._files = self._ssh, None, None
        if ssh is None:
            return
        ssh.close()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await ssh.wait_closed()
        except TimeoutError:
            ssh.abort()

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        on_output: Callable[[str], None] | None = None,
    ) -> CommandResult:
        """Run a command; see `Cluster.run`. After a signal the exit code is 128 + its number.

        Raises UserError if an argument has a NUL character.
        """
        if any("\0" in argument for argument in argv):
            raise UserError(f"an argument of {argv[0]} has a NUL character, which no command can take")
        limit = str(math.ceil(timeout_s) + _AFTER_CONNECTION_LOSS_S)
        line = "exec " + shlex.join(["sh", "-c", _WRAPPER, "sh", _QUOTED_DIFFERENTLY, limit, *argv])
        async with self._sessions:
            process: asyncssh.SSHClientProcess[bytes] = await self._using(
                lambda ssh: ssh.create_process(line, stdin=asyncssh.DEVNULL, encoding=None)
            )
            self._commands += 1
            try:
                return await self._finish(process, argv[0], timeout_s, on_output)
            finally:
                self._commands -= 1

    async def _finish(
        self,
        process: "asyncssh.SSHClientProcess[bytes]",
        command: str,
        timeout_s: float,
        on_output: Callable[[str], None] | None,
    ) -> CommandResult:
        pid = asyncio.get_running_loop().create_future()
        said_instead: list[str] = []

        async def stdout() -> str:
            await _words_of_wrapper(process.stdout, said_instead)
            return await collect(process.stdout.read, on_output, of=command)

        async def stderr() -> str:
            pid.set_result(await _words_of_wrapper(process.stderr, said_instead))
            return await collect(process.stderr.read, on_output, of=command)

        # Shielded: who ends the command needs its process id, which may not have been read yet.
        reading = asyncio.gather(stdout(), stderr())
        has_ended = False
        try:
            async with asyncio.timeout(timeout_s):
                out, err = await asyncio.shield(reading)
                await process.wait_closed()
            has_ended = True
        except TimeoutError:
            raise SystemFailure(f"the command {command} was ended after {timeout_s:g} s") from None
        except (asyncssh.Error, OSError) as error:
            raise self._lost(f"while {command} ran", error) from None
        finally:
            if not has_ended:
                await asyncio.shield(self._end(process, pid))
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)  # or asyncio logs that nobody did
        exit_code = self._exit_code(process, command)
        if not pid.result():
            words_said = one_line("; ".join(said_instead) or "nothing", at_most=300)
            raise LoginRefused(
                f"{self._address} does not start commands: its login shell ended with exit code {exit_code} "
                f"and said: {words_said}. It must be a POSIX shell, such as bash or zsh, and not csh or fish"
            )
        return CommandResult(exit_code=exit_code, stdout=out, stderr=err)

    def _exit_code(self, process: "asyncssh.SSHClientProcess[bytes]", command: str) -> int:
        if process.exit_signal is not None:
            return 128 + getattr(signal, f"SIG{process.exit_signal[0]}", 0)
        if process.exit_status is None:
            raise self._lost(f"while {command} ran", "before its exit code came")
        return process.exit_status

    async def _end(self, process: "asyncssh.SSHClientProcess[bytes]", pid: "asyncio.Future[str]") -> None:
        """Kill a running command with its process group; drop the connection if that fails."""
        ssh: asyncssh.SSHClientConnection = process.get_extra_info("connection")
        try:
            async with asyncio.timeout(_FAREWELL_S):
                killed = await self._kill(ssh, f"-{await pid}")
        except TimeoutError:
            killed = False
        finally:
            process.close()
        if not killed:
            self._give_up(ssh)

    async def _kill(self, ssh: asyncssh.SSHClientConnection, process: str) -> bool:
        """Send SIGKILL to a process, or to a group given as `-` and its id; return whether `kill` answered.

        This uses only the process's own connection: another one may lead to another login node, where the id
        belongs to another process.
        """
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._using(lambda ssh: ssh.run(shlex.join(["kill", "-KILL", "--", process])), on=ssh)
        except (TimeoutError, SystemFailure, asyncssh.Error, OSError):
            return False
        return True

    async def read(self, path: str, offset: int, limit: int) -> bytes:
        """Read up to `limit` bytes of a file from `offset`; b"" if there is none (yet).

        Raises NotRegular for anything but a regular file: at a FIFO, for example, the server would hang.
        """

        async def read(files: asyncssh.SFTPClient) -> bytes:
            data = b""
            try:
                mode = (await files.stat(path)).permissions
                if mode is not None and not stat.S_ISREG(mode):
                    raise NotRegular(f"{path} on {self._address} is not a regular file: remove it there")
                # Requests one after the other: parallel ones go on when this call is cancelled.
                async with files.open(path, "rb", block_size=0) as file:
                    while len(data) < limit and (
                        piece := cast(bytes, await file.read(limit - len(data), offset + len(data)))
                    ):
                        data += piece
            except asyncssh.SFTPNoSuchFile:
                return b""
            return data

        return await self._with_files(f"{path} could not be read", read)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file atomically (temporary name, fsync, rename), creating its folder.

        Raises SystemFailure if it cannot be written.
        """
        folder, name = posixpath.split(path)

        async def write(files: asyncssh.SFTPClient) -> None:
            # Another at each try: what a lost connection had still to write may yet come.
            temporary = posixpath.join(folder, f".{name}.{secrets.token_hex(8)}")
            try:
                file = await files.open(temporary, "xb")
            except asyncssh.SFTPNoSuchFile:
                await files.makedirs(folder, exist_ok=True)
                file = await files.open(temporary, "xb")
            try:
                async with file:
                    await file.write(data)
                    await file.fsync()
                await files.posix_rename(temporary, path)
            except asyncssh.SFTPError:
                with contextlib.suppress(asyncssh.SFTPError):
                    await files.remove(temporary)
                raise

        await self._with_cause(f"{path} could not be written", folder, write)

    async def make_folder(self, path: str) -> None:
        """Create a folder and its parents; no error if it exists.

        Raises SystemFailure if it cannot be created.
        """
        await self._with_cause(
            f"the folder {path} could not be made", path, lambda files: files.makedirs(path, exist_ok=True)
        )

    async def _with_cause(
        self, failed: str, folder: str, use: Callable[[asyncssh.SFTPClient], Awaitable[None]]
    ) -> None:
        """Call `_with_files`; if that fails, write a block in the folder by a command, which says why.

        SFTP has one word, `Failure`, for a full disk, a quota and others.
        """
        try:
            await self._with_files(failed, use)
        except OutOfReach:
            raise
        except SystemFailure as failure:
            try:
                probe = await self.run(["sh", "-c", _PROBE, "sh", folder], timeout_s=_FILE_TIMEOUT_S)
            except SystemFailure:
                raise failure from None
            if not probe.exit_code:
                raise
            lines = probe.stderr.strip().splitlines() or [""]
            why = one_line(lines[-1].rpartition(": ")[2], at_most=300)
            raise SystemFailure(f"{failed} on {self._address}: {why}") from None

    async def _with_files(self, failed: str, use: Callable[[asyncssh.SFTPClient], Awaitable[Done]]) -> Done:
        """Return the result of `use`, which must be idempotent; retry once if the connection drops.

        `failed` begins the message of the SystemFailure for a request that fails. A request that is not
        answered in time costs the connection, and the commands that run in it. If this call is cancelled, the
        request is still waited for, because the server may hang at it.
        """
        call = asyncio.create_task(self._ask_for_files(failed, use))
        self._file_calls.add(call)
        call.add_done_callback(self._file_call_ended)
        await asyncio.wait((call,))
        return call.result()

    def _file_call_ended(self, call: "asyncio.Task[Any]") -> None:
        """Forget a call, and read its exception: asyncio logs one that nobody reads after a cancellation."""
        self._file_calls.discard(call)
        if not call.cancelled():
            call.exception()

    async def _ask_for_files(
        self, failed: str, use: Callable[[asyncssh.SFTPClient], Awaitable[Done]], *, again: bool = True
    ) -> Done:
        ssh = await self._connected()  # which has limits of its own: one for each hop and login node
        hangs, limit_s = False, _FILE_TIMEOUT_S

        def give_up() -> None:
            nonlocal hangs
            hangs = self._ssh is ssh  # else another request hung first, and this one only waited behind it
            self._give_up(ssh)

        late = asyncio.get_running_loop().call_later(limit_s, give_up)
        try:
            return await self._use_files(ssh, use)
        except (*_LOST, OSError) as error:
            if hangs:
                raise SystemFailure(f"{failed} on {self._address}: no answer in {limit_s} s") from None
            if not again:
                raise OutOfReach(f"{failed} on {self._address}: {describe_error(error)}") from None
        except asyncssh.Error as error:
            raise SystemFailure(f"{failed} on {self._address}: {describe_error(error)}") from None
        finally:
            late.cancel()
        return await self._ask_for_files(failed, use, again=False)

    async def _use_files(
        self,
        ssh: asyncssh.SSHClientConnection,
        use: Callable[[asyncssh.SFTPClient], Awaitable[Done]],
    ) -> Done:
        """Call `use` with the SFTP session of the connection `ssh`, which is opened if there is none.

        Raises asyncssh.ConnectionLost if the connection was dropped: the caller limits the time of this one.
        """
        async with self._opening_files:
            if self._ssh is not ssh:
                raise asyncssh.ConnectionLost("another request for a file was not answered")
            if self._files is None:
                self._files = await self._using(lambda ssh: ssh.start_sftp_client(), on=ssh)
            files = self._files
        try:
            return await use(files)
        except _SFTP_LOST:
            if self._files is files:
                self._files = None
            raise

    async def _using(
        self,
        begin: Callable[[asyncssh.SSHClientConnection], Awaitable[Done]],
        *,
        on: asyncssh.SSHClientConnection | None = None,
    ) -> Done:
        """Open a session with `begin`, on the connection `on` if it is given, else on a usable one.

        This is retried only if no session was opened, so that no command runs twice. Raises
        asyncssh.ConnectionLost if the connection `on` is closed.
        """
        for pause_s in _OPENING_PAUSES_S:
            ssh = on or await self._connected()
            try:
                return await begin(ssh)
            except asyncssh.ChannelOpenError as error:
                refusal = error
                if error.code != asyncssh.OPEN_CONNECT_FAILED:  # something was opened: it may have begun
                    break
            except asyncssh.SFTPBadMessage as error:
                self._give_up(ssh)
                raise LoginRefused(
                    f"no SFTP server answers on {self._address} ({describe_error(error)}). If the login "
                    "shell prints text when it starts, let it do so only in interactive shells"
                ) from None
            except (asyncssh.Error, OSError) as error:
                raise self._lost("when asked", error) from None
            if on is not None and on.is_closed():
                raise asyncssh.ConnectionLost(refusal.reason)
            if not ssh.is_closed():  # sshd counts a session that has ended for a moment longer than we do
                await asyncio.sleep(pause_s)
        open_sessions = self._commands + (self._files is not None)
        if open_sessions < _LEAST_SESSIONS:
            raise LoginRefused(
                f"{self._address} allows only {open_sessions} sessions in one connection "
                f"({describe_error(refusal)}): steptime needs {_LEAST_SESSIONS}; raise "
                "MaxSessions in its sshd_config"
            )
        raise OutOfReach(f"{self._address} opens no session: {describe_error(refusal)}")

    def _give_up(self, ssh: asyncssh.SSHClientConnection | None) -> None:
        """Drop this connection so that the next call reconnects, unless another call already did."""
        if ssh is not None:
            ssh.abort()
        if self._ssh is ssh:
            self._ssh = self._files = None

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._ssh is None or self._ssh.is_closed():
                self._ssh = self._files = None
                reached = await reach(self._name, self._connections, self._login_nodes)
                self._ssh, self._address = reached.ssh, reached.title
            return self._ssh

    def _lost(self, when: str, error: Exception | str) -> OutOfReach:
        return OutOfReach(f"the connection to {self._address} was lost {when}: {describe_error(error)}")


async def _words_of_wrapper(stream: "asyncssh.SSHReader[bytes]", before: list[str]) -> str:
    """Read a stream up to the first line of the command's wrapper; return the process id in it.

    The id is on stderr; on stdout it is empty. If the wrapper did not start, return "" and add the last lines
    of the stream to `before`.
    """
    lines: deque[str] = deque(maxlen=5)
    while line := await stream.readline():
        text = line.decode(errors="replace").strip()
        if text.startswith(_BEGIN):
            return text.removeprefix(_BEGIN)
        lines.append(text)
    before.extend(filter(None, lines))
    return ""
