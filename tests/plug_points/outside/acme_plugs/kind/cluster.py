"""A kind of cluster: the local one, whose jobs greet."""

from steptime.clusters.local.cluster import LocalCluster


def connect(config, connections):
    return LocalCluster(config)
