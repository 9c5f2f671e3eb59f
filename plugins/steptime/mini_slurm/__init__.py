"""A small, real Slurm on this machine for trials and tests: `steptime slurm up`.

It runs Slurm's own programs from Debian's packages: controller, accounting in MariaDB, eight node daemons,
and an sshd for logins. Only the nodes are not real: they share this machine, and their GPUs are links to
/dev/null.
"""
