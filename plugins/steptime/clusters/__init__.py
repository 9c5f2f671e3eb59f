"""Where it runs: local, Slurm and Run:ai behind one small interface, and the job scripts."""
