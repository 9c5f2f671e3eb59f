"""Ports for servers that start later than their port is chosen."""

import random
import socket

_BELOW_EPHEMERAL = range(10_240, 20_480)
"""Linux gives out ports from 32768 on, so these stay free between the check and the server's start."""


def free_port():
    """Return a port of the loopback interface on which nobody listens."""
    for port in random.sample(_BELOW_EPHEMERAL, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port in {_BELOW_EPHEMERAL}")
