"""Clusters that Slurm manages."""

from steptime.clusters.slurm.options import SlurmOptions as Options

__all__ = ["Options"]
