"""Clusters: local, Slurm and Run:ai behind one small interface, and the scripts of their jobs."""
