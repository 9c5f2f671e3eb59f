"""Ports for servers that start later than their port is chosen."""

import random
import socket

_BELOW_EPHEMERAL = range(10_240, 20_480)
"""The kernel hands these to nobody (Linux begins at 32768): between the look and the start they stay free."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    for port in random.sample(_BELOW_EPHEMERAL, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port in {_BELOW_EPHEMERAL}")
