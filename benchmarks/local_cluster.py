"""What the local cluster costs beside its jobs: the delay until one starts, and a poll of many.

    python benchmarks/local_cluster.py [--jobs N] [--json]

A job is started five times; the best delay counts, beside the worst, as other work on the machine only adds.
Polled are N jobs that have ended, once by a process that has not seen their ends, then once more.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, add_form, show
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


async def measure(work_dir: Path, jobs: int) -> list[Figure]:
    """The figures, of a cluster below `work_dir`."""
    config = LocalConfig(name="here", kind="local", gpu_type="cpu", work_dir=str(work_dir), slots=1)
    cluster = LocalCluster(config)
    delays = [await start_delay_s(cluster, work_dir, f"start-{number}") for number in range(ROUNDS)]
    ended = Path(config.root) / "clusters" / config.name / "jobs" / "start-0"
    names = [f"job-{number}" for number in range(jobs)]
    for name in names:
        shutil.copytree(ended, ended.parent / name)
    new = LocalCluster(config)
    first_s, again_s = await poll_s(new, names), await poll_s(new, names)
    return [
        Figure("local job, submission to start", min(delays), "s", beside={"the worst": max(delays)}),
        Figure(f"first poll of {jobs} ended local jobs", first_s, "s", beside={"once more": again_s}),
    ]


def main() -> int:
    """Measure in a folder that is gone afterwards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs to poll (default: 1000)")
    add_form(parser)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return show(asyncio.run(measure(Path(folder), asked.jobs)), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
