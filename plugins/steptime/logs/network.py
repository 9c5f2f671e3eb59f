"""Parse the network that NCCL chose, as printed with `NCCL_DEBUG=INFO`.

The lines are those of NCCL 2.18 to 2.30, and of the plugin for libfabric, aws-ofi-nccl 1.7 to 1.17.
"""

import re
from typing import NamedTuple

from steptime.logs.training_log import Network

NETWORK_WORDS = (
    *(b"Using network ", b"NET/IB : Using ", b"NET/OFI Selected "),
    *(b" nvls channels, ", b" MNNVL "),
)
_PREFIX = re.compile(rb"([\w.-]{1,255}):\d+:\d+ \[\d+\] NCCL INFO ")
"""`gb-017:2001:2701 [0] NCCL INFO `: node, process, thread and GPU."""
_FORMS = {
    # Using network IB
    "network": re.compile(rb"Using network ([^\r\n]{1,60})"),
    # NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
    "devices": re.compile(rb"NET/IB : Using (.*?); OOB"),
    # NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)
    "provider": re.compile(rb"NET/OFI Selected [Pp]rovider is ([^\s,]{1,60})"),
    "rails": re.compile(rb"NET/OFI Selected .*\(found (\d{1,4}) nics\)"),
    # 16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, …
    "nvls": re.compile(rb"(\d{1,4}) nvls channels, "),
    # comm 0x55d0 rank 0 nRanks 72 nNodes 18 localRanks 4 localRank 0 MNNVL 1
    "mnnvl": re.compile(rb"nNodes \d+ .* MNNVL (\d)"),
}
_DEVICE = re.compile(r"\[\d+\][^ :]+:\d+")
_SOCKETS = re.compile(r"Socket$|.*\((?:tcp|udp|sockets|net)\b")
"""Networks that use the kernel's sockets, and libfabric providers on top of them."""


class NetworkLine(NamedTuple):
    """What one line that NCCL logs says about a node's network."""

    node: str
    said: dict[str, str]
    """Values found in the line, by the names of `_FORMS`."""


def read_network(line: bytes) -> list[NetworkLine]:
    """Parse what an NCCL line says about the network that it chose."""
    prefix = _PREFIX.search(line)
    if prefix is None:
        return []
    matches = {name: form.search(line, prefix.end()) for name, form in _FORMS.items()}
    said = {name: match[1].decode(errors="replace").strip() for name, match in matches.items() if match}
    if devices := said.pop("devices", None):
        said["rails"] = str(len(_DEVICE.findall(devices)))
    return [NetworkLine(prefix[1].decode(), said)]


class NetworkFacts:
    """Collects what the NCCL lines of a log say about the network of the nodes."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        """Name of each node's network; the last line counts."""
        self._providers: dict[str, str] = {}
        self._most: dict[str, int] = {}
        """The largest value of each number."""

    def take(self, line: NetworkLine) -> None:
        """Add what one NCCL line says."""
        for name, value in line.said.items():
            if name == "network":
                self._names[line.node] = value
            elif name == "provider":
                self._providers[line.node] = value
            else:
                self._most[name] = max(int(value), self._most.get(name, 0))

    def result(self) -> Network | None:
        """Return the network that NCCL chose; None if no line of the log names one."""
        if not self._names:
            return None
        chosen = {node: self._with_provider(node, name) for node, name in self._names.items()}
        used = {name: self._most[name] > 0 for name in ("nvls", "mnnvl") if name in self._most}
        return Network(
            names=tuple(sorted(set(chosen.values()))),
            nodes=len(chosen),
            socket_nodes=tuple(sorted(node for node, name in chosen.items() if _SOCKETS.match(name))),
            rails=self._most.get("rails"),
            **used,
        )

    def _with_provider(self, node: str, name: str) -> str:
        """Add the libfabric provider to a network's name if it is known: `Libfabric (efa)`."""
        provider = self._providers.get(node) if name.endswith("Libfabric") else None
        return f"{name} ({provider})" if provider else name
