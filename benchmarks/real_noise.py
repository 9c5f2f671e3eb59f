"""The noise of a real training from run to run, and what judging makes of it.

    python benchmarks/real_noise.py measure FILE [--repeats N] [--slower N] [--alone]
    python benchmarks/real_noise.py judge FILE

`measure` trains the tiny Llama 3.1 again and again with NeMo, one job of the local cluster after the other,
and appends a line of JSON to FILE for each run. `--slower` adds runs that are slowed. `--alone`
gives the trainings precedence on one core, as root: beside other programs the noise is that of the programs.
`judge` needs no training: `tests/judging/test_real_noise.py` holds docs/judging.md to what it says of the
files in benchmarks/real_noise/.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steptime.clusters.base import Cluster, Staged
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import job_spec
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.judging.detection import BASELINE_RUNS, FEWEST_RUNS, FRESH_RUNS, Direction, Standing, standings
from steptime.logs.reader import read_log
from steptime.recipes.models import Run
from steptime.recipes.planning import plan
from steptime.recipes.request import PlanRequest
from steptime.results.metrics import measure
from steptime.staging.stage import stage

USUAL = {"OMP_NUM_THREADS": "1"}
SLOWER = {**USUAL, "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"}
"""What computes without AVX, whoever made the processor: much beside the noise."""
ORDERS = 2000
"""Random ones of the same runs, in which they are judged again: one order has few runs to judge."""


def planned(environment: dict[str, str]) -> Run:
    """A run of 30 steps on one rank."""
    options = {"gpus": "1", "max_steps": 30, "window": "10:29", "environment": environment}
    return plan(PlanRequest.model_validate({"workload": "llama3.1", "size": "tiny", **options})).runs[0]


async def train(
    cluster: Cluster, config: LocalConfig, staged: Staged, environment: dict[str, str]
) -> dict[str, Any]:
    """One job to its end: when it began (Unix time), and what it is judged by."""
    run, began = planned(environment), time.time()
    spec = job_spec(run, staged, config, identity=f"real-noise/{began}/{os.getpid()}", started=int(began))
    job = await cluster.submit(spec)
    while (status := (await cluster.poll([job.name]))[job.name]).state.is_live:  # noqa: ASYNC110
        await asyncio.sleep(config.poll_interval_s)
    log = read_log(job.log_path, max_steps=run.max_steps)
    if status.exit_code != 0:
        raise SystemExit(f"the training ended with {status.exit_code}: see {job.log_path}")
    measured = measure(run, log)
    return {
        "began": round(began),
        "environment": environment,
        "load": round(os.getloadavg()[0], 1),
        "steady_step_time_s": measured.steady_step_time_s,
        "steady_step_time_iqr_s": measured.steady_step_time_iqr_s,
    }


async def measure_all(file: Path, repeats: int, slower: int) -> None:
    """Append the runs to the file, each as it ends."""
    config = load_cluster("local")
    assert isinstance(config, LocalConfig)
    cluster = LocalCluster(config)
    staged = await stage(cluster, config, planned(USUAL), print)
    file.parent.mkdir(parents=True, exist_ok=True)
    for environment in (*[USUAL] * repeats, *[SLOWER] * slower):
        run = await train(cluster, config, staged, environment)
        with file.open("a") as lines:
            lines.write(json.dumps(run) + "\n")
        print(f"{run['steady_step_time_s']:.4f} s a step, load {run['load']}", flush=True)


def leave_alone() -> None:
    """Give this process, and what it starts, precedence on one core; root may."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def read(file: Path) -> tuple[list[float], list[float]]:
    """What the usual runs of a file are judged by, and the slower ones, in seconds, oldest first."""
    usual: list[float] = []
    slower: list[float] = []
    for run in map(json.loads, file.read_text().splitlines()):
        # Not by SLOWER: those that are kept were slowed by a variable that Intel's processors alone heed.
        (usual if run["environment"] == USUAL else slower).append(run["steady_step_time_s"])
    return usual, slower


def judge(usual: Sequence[float], slower: Sequence[float]) -> dict[str, str]:
    """What is said of these runs: in their order, and in random orders of them."""
    stood = standings([*usual, *slower])
    in_order, after = stood[FEWEST_RUNS : len(usual)], stood[len(usual) :]
    dice = random.Random(12)  # noqa: S311 - an order of runs, not a secret
    orders = [standings(dice.sample(usual, len(usual)))[FEWEST_RUNS:] for _ in range(ORDERS)]
    judged = len(orders) * len(orders[0])
    mean = statistics.fmean(usual)
    suspected, confirmed = (
        sum(raised(one, state) for one in orders) / judged for state in ("suspected", "confirmed")
    )
    return {
        "runs": str(len(usual)),
        "mean": f"{mean:.4f} s",
        "deviation": f"{statistics.stdev(usual) / mean:.1%}",
        "suspected of being slower, of those with six before them": (
            f"{raised(in_order, 'suspected')} of {len(in_order)}"
        ),
        "suspected of being faster, and confirmed": " and ".join(
            str(raised(in_order, state, "faster")) for state in ("suspected", "confirmed")
        ),
        "suspected of being slower in random orders of these runs": f"{suspected:.2%}",
        "… and confirmed by the next two": f"{confirmed:.3%}",
        **{
            f"a slowdown of {slower:.0%} confirmed by the next two": f"{power(usual, slower, dice):.0%}"
            for slower in (0.05, 0.1, 0.2)
        },
        "slowdown that a single run shows": f"{stood[len(usual) - 1].against.minimum_detectable_change:.1%}",
        **({"the runs without AVX": ", ".join(stands(one) for one in after)} if after else {}),
    }


def raised(stood: Sequence[Standing], state: str, direction: Direction = "slower") -> int:
    """How often a change came to that state anew."""
    first = {"suspected": 1, "confirmed": 1 + FRESH_RUNS}[state]
    return sum((one.state, one.direction, len(one.since)) == (state, direction, first) for one in stood)


def power(usual: Sequence[float], slower: float, dice: random.Random) -> float:
    """How often three runs that are so much slower are confirmed, after a whole baseline of the others."""
    confirmed = 0
    for _ in range(ORDERS):
        runs = dice.sample(usual, BASELINE_RUNS + 1 + FRESH_RUNS)
        slowed = [(1 + slower) * seconds for seconds in runs[BASELINE_RUNS:]]
        last = standings([*runs[:BASELINE_RUNS], *slowed])[-1]
        confirmed += (last.state, last.direction) == ("confirmed", "slower")
    return confirmed / ORDERS


def stands(standing: Standing) -> str:
    """State and change."""
    return f"{standing.state} {standing.change or 0:+.1%}"


def main() -> None:
    """Measure or judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    measuring = actions.add_parser("measure", help="train, and append to FILE")
    judging = actions.add_parser("judge", help="judge the runs of FILE")
    for action in (measuring, judging):
        action.add_argument("file", type=Path, metavar="FILE")
    measuring.add_argument("--repeats", type=int, default=30, help="usual runs (default: 30)")
    measuring.add_argument("--slower", type=int, default=0, help="runs without AVX after them (default: 0)")
    measuring.add_argument("--alone", action="store_true", help="with precedence on one core, as root")
    arguments = parser.parse_args()
    if arguments.action == "measure":
        if arguments.alone:
            leave_alone()
        asyncio.run(measure_all(arguments.file, arguments.repeats, arguments.slower))
    else:
        for what, figure in judge(*read(arguments.file)).items():
            print(f"{what}: {figure}")


if __name__ == "__main__":
    main()
