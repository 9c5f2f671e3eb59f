"""What waiting for many Slurm jobs costs one event loop, as in Airflow's triggerer.

    python benchmarks/triggerer_waits.py [--waits 10,100,1000] [--interval 5]

Starts a mini Slurm, whose jobs print steps as NeMo does, and sleep; 256 run at once. Each job is followed as
steptime's trigger does it, in this process.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from figures import Figure, show
from steptime import settings
from steptime.airflow.connections import airflow_connection
from steptime.clusters.base import Job, JobState
from steptime.mini_slurm import daemons, service
from steptime.mini_slurm.layout import SlurmLayout, login_connection
from steptime.recipes.models import Run
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest
from steptime.runs.following import WaitLimits, follow

TRAINING = """#!/bin/bash
for ((step = 0; step < $1; step++)); do
  sleep $2
  echo "0: Training epoch 0, iteration $step/$(($1 - 1)) | lr: 1e-05 | global_step: $step |" \\
    "reduced_train_loss: 9.5 | train_step_timing in s: $2 | consumed_samples: $((step + 1))"
done
date +%s.%N >ended
"""
CLUSTER = """
name: polled
kind: slurm
gpu_type: cpu
connection: mini_slurm
work_dir: "{STEPTIME_HOME}/work"
poll_interval_s: """
LATE_EVERY_S = 0.01


@contextmanager
def mini_slurm(home: Path, interval_s: float) -> Iterator[SlurmLayout]:
    """Run a Slurm in a state folder, with a cluster file and a connection that lead to it."""
    clusters = home / "config" / "clusters"
    clusters.mkdir(parents=True)
    for entry in settings.shipped("config").iterdir():
        if entry.name != "clusters":
            (home / "config" / entry.name).symlink_to(entry)
    (clusters / "polled.yaml").write_text(f"{CLUSTER}{interval_s}\n")
    os.environ |= {"STEPTIME_HOME": str(home), "STEPTIME_CONFIG_DIR": str(home / "config")}
    try:
        layout, _ = service.up(home, lambda _: None)
        ours = login_connection(layout)
        told = {"conn_type": "ssh", "host": ours.host, "port": ours.port, "login": ours.login}
        os.environ["AIRFLOW_CONN_MINI_SLURM"] = json.dumps({**told, "extra": dict(ours.extra)})
        yield layout
    finally:
        service.down(home, lambda _: None)


def submit(layout: SlurmLayout, work: Path, count: int) -> Iterator[Job]:
    """Submit jobs of 8 to 48 s, the same in every run."""
    lengths = random.Random(count)  # noqa: S311 - the same lengths every time
    for number in range(count):
        name = f"wait-{count}-{number}"
        folder = work / name
        folder.mkdir(parents=True)
        (folder / "job.sh").write_text(TRAINING)
        options = [f"--job-name={name}", f"--chdir={folder}", f"--output={folder}/log", "--cpus-per-task=2"]
        steps = [str(lengths.randint(2, 8)), f"{lengths.uniform(4, 6):.2f}"]
        job_id = daemons.command(layout, "sbatch", *options, "--parsable", f"{folder}/job.sh", *steps).strip()
        yield Job(
            cluster="polled",
            name=name,
            job_id=job_id,
            submitted_at=time.time(),
            directory=str(folder),
            log_path=f"{folder}/log",
        )


def ended_at(job: Job) -> float:
    """Read the Unix time at which the job's script ended."""
    return float(Path(job.directory, "ended").read_text())


async def wait_for(run: Run, jobs: list[Job]) -> tuple[list[float], float]:
    """Follow all jobs; return the seconds from each job's end to its event, and the loop's worst delay."""
    late_s = 0.0

    async def beat() -> None:
        nonlocal late_s
        while True:
            began = time.monotonic()
            await asyncio.sleep(LATE_EVERY_S)
            late_s = max(late_s, time.monotonic() - began - LATE_EVERY_S)

    async def wait(job: Job) -> float:
        limits = WaitLimits(patience_s=3600, queue_s=3600, run_s=3600)
        status = await follow(run, job, limits, airflow_connection, info=lambda _: None, warn=print)
        assert status.state is JobState.SUCCEEDED, status
        return time.time() - ended_at(job)

    beating = asyncio.create_task(beat())
    delays = await asyncio.gather(*map(wait, jobs))
    beating.cancel()
    return delays, late_s


def figures(counts: list[int], interval_s: float) -> Iterator[Figure]:
    """Yield the figures of each number of waits."""
    process = psutil.Process()
    with (
        tempfile.TemporaryDirectory(prefix="steptime-") as folder,
        mini_slurm(Path(folder), interval_s) as slurm,
    ):
        run = plan(PlanRequest(workload="llama3.1", gpus="1", cluster="polled")).runs[0]
        for count in counts:
            jobs = list(submit(slurm, Path(folder, "work"), count))
            began, used = time.monotonic(), time.process_time()
            delays, late_s = asyncio.run(wait_for(run, jobs))
            cores = (time.process_time() - used) / (time.monotonic() - began)
            yield Figure(f"{count} waits: job's end to event, median", statistics.median(delays), "s")
            yield Figure(f"{count} waits: job's end to event, worst", max(delays), "s")
            yield Figure(f"{count} waits: loop late, worst", 1000 * late_s, "ms")
            yield Figure(f"{count} waits: cores", cores, "cores")
            yield Figure(f"{count} waits: memory", process.memory_info().rss / 1e6, "MB")


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waits", default="10,100,1000", help="one after the other (default: 10,100,1000)")
    parser.add_argument("--interval", type=float, default=5, help="seconds between polls (default: 5)")
    asked = parser.parse_args()
    return show(figures([int(count) for count in asked.waits.split(",")], asked.interval))


if __name__ == "__main__":
    sys.exit(main())
