"""What waiting for Slurm jobs costs: by our triggers, and by the SSH provider's hook with a poll for each.

    python benchmarks/slurm_polling.py [--jobs 1,50,200] [--interval 5]

Starts a mini Slurm of its own, submits short jobs, and waits for them in one process: once with as many
triggers as jobs, which share one connection and one poll, and once as a deferred task of Airflow's SSH
provider would, with a connection for each job that asks `squeue -j ID`, at the same interval.

squeue calls are those that the controller counted (`sdiag`). A job is detected when the one who waits for it
is known; the delay counts from the last command of its script, and has Slurm's own share in it. The triggers
also look at each job's log at every poll. The mini Slurm runs on the same machine and takes its part of it.
"""

import argparse
import asyncio
import importlib
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from slurm_jobs import CLUSTER, ended_at, mini_slurm, submit
from steptime.clusters.base import Job
from steptime.mini_slurm import daemons, service
from steptime.mini_slurm.layout import SlurmLayout

SCRIPT = "#!/bin/sh\nsleep $1\ndate +%s.%N >ended\n"
JOBS_RUN_S = (20, 45)
GIVE_UP_S = 180
SAMPLE_S = 0.25
HEADINGS = (
    *("who waits", "jobs", "squeue calls per minute", "ssh connections", "file descriptors"),
    *("cores busy", "delay, median, s", "delay, 95 %, s", "failed polls"),
)
_LOOKED_UP = re.compile(r"^\s*REQUEST_JOB_(?:USER_)?INFO\w*\s*\(\s*\d+\)\s*count:(\d+)", re.MULTILINE)
_STILL_THERE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


@dataclass
class Waited:
    """What waiting for some jobs came to."""

    noticed_at: dict[str, float] = field(default_factory=dict)
    """Unix time at which the end of each job was known."""
    failed_polls: int = 0
    duration_s: float = 0.0
    squeue_calls: int = 0
    connections: int = 0
    descriptors: int = 0
    """Open files beyond those of before, as connections: the most that were seen."""
    processor_s: float = 0.0
    """Of this process."""


Wait = Callable[[Sequence[Job], float, Waited], Awaitable[None]]


async def by_triggers(jobs: Sequence[Job], interval_s: float, waited: Waited) -> None:  # noqa: ARG001
    """As steptime's deferred tasks wait; the interval is that of the cluster's file."""
    from steptime.airflow.triggers import TrainingTrigger
    from steptime.recipes.planning import PlanRequest, plan

    run = plan(PlanRequest(workload="llama3.1", gpus="1", cluster=CLUSTER)).runs[0].model_dump(mode="json")

    async def wait(job: Job) -> None:
        trigger = TrainingTrigger(run=run, job=job.model_dump(mode="json"), patience_s=GIVE_UP_S)
        event = await anext(trigger.run())
        assert event.payload["status"]["state"] == "succeeded", event.payload
        waited.noticed_at[job.name] = time.time()

    await asyncio.gather(*map(wait, jobs))


async def by_stock_hook(jobs: Sequence[Job], interval_s: float, waited: Waited) -> None:
    """As one deferred task for each job with the SSH provider's hook: a kept connection, and squeue -j."""
    from airflow.providers.ssh.hooks.ssh import SSHHookAsync

    async def wait(job: Job) -> None:
        connection = None
        while True:
            await asyncio.sleep(interval_s)
            try:
                if connection is None:
                    connection = await SSHHookAsync(ssh_conn_id="stock").get_conn()  # type: ignore[no-untyped-call]
                done = await connection.run(f"squeue --noheader --states=all --Format=State -j {job.job_id}")
                state = str(done.stdout).strip()
            except Exception:  # what it is does not matter: the next poll is a new attempt
                waited.failed_polls += 1
                connection = None
                continue
            if state and state not in _STILL_THERE:
                assert state == "COMPLETED", state
                waited.noticed_at[job.name] = time.time()
                connection.close()
                return

    await asyncio.gather(*map(wait, jobs))


def short_jobs(count: int, label: str) -> Iterator[tuple[str, list[str]]]:
    """Names and seconds of jobs: these differ, and are the same for both ways of waiting."""
    lengths = random.Random(count)  # noqa: S311 (the same lengths every time)
    for number in range(count):
        yield f"{label}-{count}-{number}", [f"{lengths.uniform(*JOBS_RUN_S):.1f}"]


async def measure(layout: SlurmLayout, jobs: Sequence[Job], wait: Wait, interval_s: float) -> Waited:
    """Wait for the jobs in this process, and count."""
    waited, process = Waited(), psutil.Process()
    files_before, processor_before = process.num_fds(), sum(process.cpu_times()[:2])

    async def sample() -> None:
        while True:
            open_ = [one for one in process.net_connections("tcp") if one.raddr]
            logins = sum(one.raddr.port == layout.ports.sshd for one in open_)
            waited.connections = max(waited.connections, logins)
            waited.descriptors = max(waited.descriptors, process.num_fds() - files_before)
            await asyncio.sleep(SAMPLE_S)

    daemons.command(layout, "sdiag", "--reset")
    began = time.monotonic()
    sampling = asyncio.create_task(sample())
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await wait(jobs, interval_s, waited)
    except TimeoutError:
        print(
            f"given up after {GIVE_UP_S} s: {len(waited.noticed_at)} of {len(jobs)} are known",
            file=sys.stderr,
        )
    finally:
        sampling.cancel()
    waited.duration_s = time.monotonic() - began
    waited.processor_s = sum(process.cpu_times()[:2]) - processor_before
    counted = daemons.command(layout, "sdiag")
    waited.squeue_calls = sum(map(int, _LOOKED_UP.findall(counted)))
    return waited


def row(how: str, jobs: Sequence[Job], waited: Waited) -> str:
    """A line of the table."""
    delays = sorted(
        noticed - ended_at(job) for job in jobs if (noticed := waited.noticed_at.get(job.name)) is not None
    )
    p95 = statistics.quantiles(delays, n=20, method="inclusive")[-1] if len(delays) > 1 else delays[0]
    values = [
        f"{60 * waited.squeue_calls / waited.duration_s:.0f}",
        str(waited.connections),
        str(waited.descriptors),
        f"{waited.processor_s / waited.duration_s:.2f}",
        f"{statistics.median(delays):.1f}",
        f"{p95:.1f}",
        str(waited.failed_polls),
    ]
    return f"| {how} | {len(jobs)} | {' | '.join(values)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", default="1,50,200", help="how many jobs at once (default: 1,50,200)")
    parser.add_argument("--interval", type=float, default=5, help="seconds between polls (default: 5)")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.jobs.split(",")]
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        home = Path(folder)
        with mini_slurm(home, arguments.interval) as layout:
            for module in ("steptime.airflow.triggers", "airflow.providers.ssh.hooks.ssh"):
                importlib.import_module(module)  # it takes seconds, which are not those of waiting
            print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
            for count in counts:
                for how, wait in (("triggers", by_triggers), ("stock", by_stock_hook)):
                    jobs = submit(layout, home / "work", SCRIPT, short_jobs(count, how))
                    waited = asyncio.run(measure(layout, jobs, wait, arguments.interval))
                    print(row(how, jobs, waited), flush=True)
                    service.cancel_jobs(layout, lambda _: None)


if __name__ == "__main__":
    main()
