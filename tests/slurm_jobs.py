"""What a planned row asks of sbatch, srun and numactl, for comparison with upstream's."""

import itertools
import re
import shlex
import subprocess
from typing import Any, NamedTuple

from named_runs import IN_IMAGE

from steptime.clusters.jobscript import job_spec
from steptime.clusters.slurm.config import SlurmConfig
from steptime.recipes.models import Mode, Run, Window
from steptime.recipes.workloads import load_workload


class Asked(NamedTuple):
    """What the job script of a row on Slurm asks for."""

    sbatch: dict[str, Any]
    """Options of sbatch by the names of NeMo-Run."""
    further: set[str]
    """Options of sbatch that only ours has."""
    srun: set[str]
    binding: str
    """The words before Python."""
    command: list[str]
    """The words from Python on."""


def run_of_row(row):
    """Return a run of the row on Slurm."""
    rules = load_workload(row.workload).performance
    return Run(
        recipe=row,
        mode=Mode.PERFORMANCE,
        experiment="pretrain",
        max_steps=50,
        window=Window(first=35, last=49),
        time_limit_s=1800,
        cluster="here",
        performance=rules.of(row, row.size, Mode.PERFORMANCE, "slurm"),
    )


def asked_of_slurm(row):
    """Return what the row's job asks for on a Slurm cluster with pyxis whose file sets nothing else."""
    cluster = SlurmConfig(
        **{"name": "here", "kind": "slurm", "gpu_type": row.gpu_type, "work_dir": "/shared"},
        **{"connection": "here", "container": "pyxis"},
    )
    script = job_spec(run_of_row(row), IN_IMAGE, cluster, identity="row", started=0).script
    sbatch = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S*))?$", script, re.MULTILINE))
    srun = shlex.split(script.rpartition("\nsrun ")[2].partition("&\n")[0].replace("\\\n", " "))
    command = list(itertools.dropwhile(lambda word: word.startswith("--"), srun))
    python = command.index("python")
    options = {
        "nodes": int(sbatch.pop("nodes")),
        "ntasks_per_node": int(sbatch.pop("ntasks-per-node")),
        **({"segment": int(sbatch.pop("segment"))} if "segment" in sbatch else {}),
        "mem": sbatch.pop("mem"),
        "exclusive": sbatch.pop("exclusive") == "",
    }
    return Asked(options, {*sbatch}, {*srun}, shlex.join(command[:python]), command[python:])


def numactl_of(command, folder):
    """Return what bash passes to numactl on each local rank of a node, with options by their long names."""
    numactl = folder / "numactl"
    numactl.write_text('#!/bin/sh\ncase "$*" in *train) echo "$@" ;; esac\n')
    numactl.chmod(0o755)
    told = []
    for local_rank in range(8):
        done = subprocess.run(
            ["/bin/bash", "-c", command],
            env={"PATH": f"{folder}:/usr/bin:/bin", "SLURM_LOCALID": str(local_rank), "SLURM_PROCID": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        words = done.stdout.replace("-C ", "--physcpubind=").split()
        told.append([word for word in words if re.match("--(cpunodebind|membind|physcpubind)=", word)])
    return told
