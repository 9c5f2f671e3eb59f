"""What the local cluster costs beside its jobs: the delay until one starts, and a poll of many.

    python benchmarks/local_cluster.py [--jobs N]

A job is started five times; the best and the worst delay are shown, as other work on the machine only adds.
Polled are N jobs that have ended, once by a process that has not seen their ends, then once more.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from steptime.clusters.base import JobSpec
from steptime.clusters.local.cluster import LocalCluster, LocalConfig

ROUNDS = 5


async def start_delay_s(cluster: LocalCluster, folder: Path, name: str) -> float:
    """Seconds from the submission of a job that does nothing to its start."""
    job = await cluster.submit(
        JobSpec(
            name=name,
            script="#!/bin/sh\n",
            directory=str(folder / name),
            log_path=str(folder / name / "log.out"),
            slots=1,
            time_limit_s=60,
        )
    )
    while (status := (await cluster.poll([name]))[name]).state.is_live:  # noqa: ASYNC110 - a process ends it
        await asyncio.sleep(0.02)
    assert status.started_at is not None, status.reason
    return status.started_at - job.submitted_at


async def poll_s(cluster: LocalCluster, names: list[str]) -> float:
    """Seconds that one poll of these jobs takes."""
    begin = time.perf_counter()
    await cluster.poll(names)
    return time.perf_counter() - begin


async def measure(work_dir: Path, jobs: int) -> None:
    """Print a line for each cost."""
    config = LocalConfig(name="here", kind="local", gpu_type="cpu", work_dir=str(work_dir), slots=1)
    cluster = LocalCluster(config)
    delays = [await start_delay_s(cluster, work_dir, f"start-{number}") for number in range(ROUNDS)]
    print(f"from submission to start     {min(delays):6.3f} to {max(delays):.3f} s")
    ended = Path(config.root) / "clusters" / config.name / "jobs" / "start-0"
    names = [f"job-{number}" for number in range(jobs)]
    for name in names:
        shutil.copytree(ended, ended.parent / name)
    new = LocalCluster(config)
    print(f"a poll of {jobs} ended jobs   {await poll_s(new, names):6.3f} s")
    print(f"the same once more           {await poll_s(new, names):6.3f} s")


def main() -> int:
    """Measure in a folder that is gone afterwards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs to poll (default: 1000)")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), parser.parse_args().jobs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
