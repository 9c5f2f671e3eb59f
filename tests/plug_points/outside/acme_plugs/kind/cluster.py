"""A kind of cluster: the local one, whose jobs greet."""

from typing import Literal

from steptime.clusters.connections import Connections
from steptime.clusters.local.cluster import LocalCluster, LocalConfig


class Config(LocalConfig):
    kind: Literal["acme"]  # type: ignore[assignment]


def connect(config: Config, connections: Connections) -> LocalCluster:
    return LocalCluster(config)
