"""A kind of cluster: the local one, whose jobs greet."""

from acme_plugs.kind.config import Config
from steptime.clusters.connections import Connections
from steptime.clusters.local.cluster import LocalCluster


def connect(config: Config, connections: Connections) -> LocalCluster:
    return LocalCluster(config)
