"""The route to a cluster: through its jump hosts to the first login node that accepts the login.

Each hop is an ssh connection of its own, tunnelled through the previous one: with its own login, and with its
host key checked. Closing the last connection closes all.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import asyncssh

from steptime.clusters.connections import Connection, Connections
from steptime.clusters.slurm.ssh_login import (
    Login,
    at_address,
    describe_error,
    error_for_refused_login,
    error_for_untrusted_key,
    jump_connections,
    read_login,
)
from steptime.errors import LoginRefused, OutOfReach, UserError, one_line
from steptime.waiting import retrying

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostConnection:
    """A connection to a host that has accepted the login."""

    ssh: asyncssh.SSHClientConnection
    title: str
    """The host's name in messages."""


async def reach(name: str, connections: Connections, login_nodes: Sequence[str] = ()) -> HostConnection:
    """Log in to the first available one of `login_nodes`; without these, to the connection's own host.

    Raises UserError if no configured login can work, LoginRefused if every node refuses it, else OutOfReach.
    Each message names every node.
    """
    connection = await connections(name)
    jumps = [await connections(jump) for jump in jump_connections(connection)]
    for jump in jumps:
        if jump_connections(jump):
            raise UserError(
                f"the connection '{jump.name}' has jump_connections, but is itself a jump host of '{name}': "
                f"name all hops in the jump_connections of '{name}', the outermost first."
            )
    failures: list[UserError | OutOfReach] = []
    for node in [at_address(connection, address) for address in login_nodes] or [connection]:
        try:
            reached = await _through(jumps, node)
        except (UserError, OutOfReach) as failure:
            failures.append(failure)
        else:
            for passed in failures:
                _log.warning("%s; went on with %s", passed, reached.title)
            return reached
    raise _no_login_node(name, failures)


def _no_login_node(name: str, failures: Sequence[UserError | OutOfReach]) -> UserError | OutOfReach:
    reasons = list(dict.fromkeys(str(failure) for failure in failures))
    if len(reasons) == 1:
        return failures[0]
    kind: type[UserError | OutOfReach] = OutOfReach
    if all(isinstance(failure, UserError) for failure in failures):
        kind = UserError
    elif all(isinstance(failure, UserError | LoginRefused) for failure in failures):
        kind = LoginRefused
    return kind(f"no login node of connection '{name}' can be used: {'; '.join(reasons)}")


async def _through(jumps: Sequence[Connection], node: Connection) -> HostConnection:
    through = None
    for jump in jumps:
        through = await _log_in(jump, "jump host", through)
    return await _log_in(node, "login node", through)


async def _log_in(
    connection: Connection, role: str, through: HostConnection | None, behind: tuple[str, ...] = ()
) -> HostConnection:
    """Log in to a host, inside the connection `through`, which is closed if that fails.

    Without `through`, the ProxyJump of the connection's ssh_config is used, if there is one. `behind` are the
    hosts to be reached through this one, to detect a circle of jump hosts.
    """
    try:
        login = await asyncio.to_thread(read_login, connection, role)
        if through is None:
            through = await _through_proxy_jump(login, (*behind, connection.host))
        ssh = await _connect(login, through)
    except BaseException:
        if through is not None:
            through.ssh.abort()
        raise
    if through is not None:
        ssh.set_tunnel(through.ssh)
    return HostConnection(ssh, login.title)


async def _through_proxy_jump(login: Login, behind: tuple[str, ...]) -> HostConnection | None:
    through = None
    for jump in login.jumps:
        if jump.host == behind[-1]:  # `Host *` has a ProxyJump, and this is it: ssh then goes there directly
            continue
        if jump.host in behind:
            raise UserError(
                f"{login.title} is reached through ProxyJump {one_line(jump.host)}, which is itself reached "
                "through it: remove one of the two ProxyJump lines in its ssh_config."
            )
        through = await _log_in(jump, "jump host", through, behind)
    return through


async def _connect(login: Login, through: HostConnection | None) -> asyncssh.SSHClientConnection:
    via = f", through {through.title}," if through else ""
    try:
        async with asyncio.timeout(login.timeout_s):
            return await _logged_in(login, through)
    except TimeoutError:
        raise OutOfReach(
            f"{login.title}{via} did not complete the login within {login.timeout_s:g} s"
        ) from None
    except asyncssh.HostKeyNotVerifiable as error:
        raise error_for_untrusted_key(login, error, via) from None
    except asyncssh.PermissionDenied as error:
        raise error_for_refused_login(login, error.reason, via) from None
    except asyncssh.ChannelOpenError as error:
        if through and error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            raise LoginRefused(
                f"{through.title} does not forward to {login.title}: {describe_error(error)}; its sshd "
                f"must permit it to '{one_line(through.ssh.get_extra_info('username'))}' "
                "(AllowTcpForwarding, PermitOpen)"
            ) from None
        raise OutOfReach(f"{login.title}{via} cannot be reached: {describe_error(error)}") from None
    except (asyncssh.Error, OSError) as error:
        raise OutOfReach(f"{login.title}{via} cannot be reached: {describe_error(error)}") from None


async def _logged_in(login: Login, through: HostConnection | None) -> asyncssh.SSHClientConnection:
    """Open a connection; retry if sshd rejects it because many come at once (MaxStartups)."""
    tunnel = through.ssh if through else None

    @retrying(asyncssh.ConnectionLost, ConnectionResetError, first_s=0.2, longest_s=1)
    async def connect() -> asyncssh.SSHClientConnection:
        if through and through.ssh.is_closed():
            raise OutOfReach(f"{login.title} cannot be reached: the connection to {through.title} was lost")
        return await asyncssh.connect(**login.options, tunnel=tunnel)

    return await connect()
