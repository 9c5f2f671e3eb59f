"""A small, real Slurm on this machine for trials and tests: `steptime slurm up`.

All of it is Slurm as Debian packages it: controller, accounting in MariaDB, eight node daemons, and an sshd
to log in by. Only the nodes are not real: they share this machine, and their GPUs are links to /dev/null.
"""
