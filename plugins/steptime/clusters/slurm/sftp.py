"""The SFTP sessions of a connection: a file that hangs must not block other files or commands.

OpenSSH's server handles the requests of a session one after the other. A request for a file on a file system
that hangs waits for ever, and so does every later one. The server lives on when its session is closed, and
still counts towards the sessions that sshd allows a connection (MaxSessions, 10); so it is killed, and if not
even that ends it, no more than `SESSIONS` ever hang.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncssh

SESSIONS = 3
"""Most SFTP sessions at once, including those whose servers hang."""
TIMEOUT_S = 60
"""Time limit of one call, which opens a file, reads or writes it, and closes it."""
_SLOW_S = 2.0
"""Seconds after which a server that has not answered gets no further calls, if another can be started."""

Done = TypeVar("Done")
Kill = Callable[[asyncssh.SSHClientConnection, str], Awaitable[object]]
"""Kills a process by its id on the host of a connection; no error if it cannot."""


@dataclass(eq=False)
class Session:
    """An SFTP session and its server process."""

    ssh: asyncssh.SSHClientConnection
    client: asyncssh.SFTPClient
    server: str
    """Process id of the session's server; empty if the host does not show it."""
    calls: dict[asyncio.Future[Any], float] = field(default_factory=dict)
    """Unanswered calls and when they began, the oldest first."""
    given_up: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def oldest_waits_s(self) -> float:
        """The seconds for which the oldest unanswered call has been waiting; 0 if there is none."""
        now = asyncio.get_running_loop().time()
        return now - next(iter(self.calls.values()), now)


class Sessions:
    """The SFTP sessions on the current connection to a login node; those on an earlier one are dropped."""

    def __init__(self, kill: Kill) -> None:
        self._kill = kill
        self._sessions: list[Session] = []
        self._opening = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """The number of open sessions, including those whose servers hang."""
        return len(self._sessions)

    async def session(self, ssh: asyncssh.SSHClientConnection) -> Session | None:
        """Return the session on `ssh` with the shortest wait, or a new one; None if `SESSIONS` hang.

        Raises asyncssh.Error if a new one cannot be opened.
        """
        async with self._opening:
            self._sessions = [session for session in self._sessions if session.ssh is ssh]
            usable = [session for session in self._sessions if not session.given_up.is_set()]
            best = min(usable, key=lambda session: session.oldest_waits_s, default=None)
            has_room = len(self._sessions) < SESSIONS
            if has_room and (best is None or best.oldest_waits_s > _SLOW_S):
                best = await _opened(ssh)
                self._sessions.append(best)
            return best

    async def call(self, session: Session, use: Callable[[asyncssh.SFTPClient], Awaitable[Done]]) -> Done:
        """Call `use` with a session and return its result.

        Raises:
            TimeoutError: there was no answer in time; the session is abandoned.
            asyncssh.SFTPConnectionLost: the session ended, or was abandoned because another call hung.
            asyncssh.Error: the server refuses the request.
        """
        call = asyncio.ensure_future(use(session.client))
        session.calls[call] = asyncio.get_running_loop().time()
        call.add_done_callback(lambda call: _answered(session, call))
        given_up = asyncio.ensure_future(session.given_up.wait())
        try:
            await asyncio.wait((call, given_up), timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
            if session.given_up.is_set():
                raise asyncssh.SFTPConnectionLost("the SFTP session hangs while it accesses another file")
            self._give_up(session)
            raise TimeoutError
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection):
            if not session.given_up.is_set():
                self._forget(session)
            raise
        finally:
            given_up.cancel()
            call.cancel()  # not waited for: to close its file, it asks the server

    def _give_up(self, session: Session) -> None:
        session.given_up.set()
        ending = asyncio.create_task(self._end(session))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end(self, session: Session) -> None:
        session.client.exit()
        if session.server:
            await self._kill(session.ssh, session.server)
        await session.client.wait_closed()  # sshd closes it when the server has ended
        self._forget(session)

    def _forget(self, session: Session) -> None:
        if session in self._sessions:
            self._sessions.remove(session)


def _answered(session: Session, call: asyncio.Future[Any]) -> None:
    del session.calls[call]
    if not call.cancelled():
        call.exception()  # read, so that asyncio does not log it: nobody waits for it any more


async def _opened(ssh: asyncssh.SSHClientConnection) -> Session:
    client = await ssh.start_sftp_client()
    server = ""
    with contextlib.suppress(asyncssh.SFTPError):  # a host without /proc, or that hides it
        server = str(await client.readlink("/proc/self"))
    return Session(ssh, client, server if server.isdecimal() else "")
