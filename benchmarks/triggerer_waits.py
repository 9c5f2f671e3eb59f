"""What a thousand waits for Slurm jobs cost Airflow's triggerers, beside ten and a hundred in the same run.

    python benchmarks/triggerer_waits.py [--waits 10,100,1000] [--triggerers 2] [--database URL] [--json]

Starts a mini Slurm and Airflow's own triggerer, without a scheduler. Jobs are stand-ins for trainings: they
print steps as NeMo does, and sleep; 256 of them run at once, the others queue. For each a task is deferred
with steptime's trigger, as its sensor does it, and its wait has ended when Airflow's database has the event:
the task is scheduled again. Airflow's database is SQLite, or what `--database` names, which has to be empty.

Where the loop is *held up* counts the processor time of its own thread, so that other work on this machine,
where Slurm, jobs and database run, too, does not make it worse; how *late* it was counts that as well. What
held it up for more than 50 ms is printed, as the stack at that moment.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from figures import Figure, add_form, show
from slurm_jobs import CLUSTER, ended_at, mini_slurm, submit
from steptime.clusters.base import Job
from steptime.mini_slurm import daemons
from steptime.mini_slurm.layout import SlurmLayout
from steptime.service.standalone_config import database_address

TRAINING = """#!/bin/bash
# A stand-in for a training: so many steps, of so many seconds.
for ((step = 0; step < $1; step++)); do
  sleep $2
  echo "0: Training epoch 0, iteration $step/$(($1 - 1)) | lr: 1e-05 | global_step: $step |" \\
    "reduced_train_loss: 9.5 | train_step_timing in s: $2 | consumed_samples: $((step + 1))"
done
date +%s.%N >ended
"""
STEPS, STEP_S = (2, 8), (4, 6)
CORES_OF_JOB = "2"
"""Of the 512 that the mini Slurm's nodes believe in."""
GIVE_UP_S = 500
HELD_UP_GOAL_MS = 50
SHOWN_STACKS = 5
DAG_ID = "waits"


@dataclass(frozen=True)
class Waited:
    """What so many waits came to; of several triggerers the busiest counts."""

    delays_s: Sequence[float]
    """From the end of each job to its event in Airflow's database."""
    beats: Sequence[Sequence[dict[str, float]]]
    """Of each triggerer's probe, while jobs ran."""
    stacks: Sequence[dict[str, Any]]
    """What held a loop up, see `loop_probe.Watch`."""
    memory_mb: float
    """Of an event loop's process alone, the most that was seen."""
    loop_cores: float
    supervisor_cores: float

    def per_minute(self, what: str) -> float:
        """How often a minute the triggerers made such calls."""
        return sum(
            60 * (last[what] - first[what]) / (last["at"] - first["at"]) for first, *_, last in self.beats
        )

    def worst(self, what: str) -> float:
        """The worst second of any loop."""
        return max(beat[what] for beats in self.beats for beat in beats)


def trainings(count: int) -> Iterator[tuple[str, list[str]]]:
    """Names of jobs with the number of their steps and its time; the same in every run."""
    lengths = random.Random(count)  # noqa: S311 - the same lengths every time
    for number in range(count):
        yield f"wait-{count}-{number}", [str(lengths.randint(*STEPS)), f"{lengths.uniform(*STEP_S):.2f}"]


def make_dag() -> Any:
    """The DAG that the waits belong to, as Airflow's database keeps it."""
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session

    with DAG(DAG_ID, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        EmptyOperator(task_id="wait")
    lazy = LazyDeserializedDAG.from_dag(dag)
    with create_session() as session:
        session.merge(DagBundleModel(name="benchmark"))
        session.flush()
        SerializedDAG.bulk_write_to_db("benchmark", None, [lazy], session=session)
        SerializedDagModel.write_dag(lazy, bundle_name="benchmark", session=session)
    with create_session() as session:
        return SerializedDagModel.get_dag(DAG_ID, session=session)


def defer(dag: Any, jobs: Sequence[Job]) -> None:
    """Make a DAG run for each job, of its name, whose task is deferred until the job ends."""
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    from loop_probe import ProbedTrigger
    from steptime.recipes.planning import PlanRequest, plan

    run = plan(PlanRequest(workload="llama3.1", gpus="1", cluster=CLUSTER)).runs[0].model_dump(mode="json")
    with create_session() as session:
        for job in jobs:
            dag_run = dag.create_dagrun(
                run_id=job.name,
                run_after=datetime.now(UTC),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState.RUNNING,
                session=session,
            )
            [instance] = dag_run.task_instances
            limits = {"patience_s": 3600, "queue_s": 3600, "run_s": 3600}
            waits = ProbedTrigger(run=run, job=job.model_dump(mode="json"), **limits)
            trigger = Trigger.from_object(waits)
            session.add(trigger)
            session.flush()
            instance.state = TaskInstanceState.DEFERRED
            instance.try_number = 1
            instance.trigger_id = trigger.id
            instance.next_method = "execute_complete"


def scheduled_at() -> dict[str, float]:
    """Of the waits that have ended, by DAG run, when Airflow's database got to know; unix seconds."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    with create_session() as session:
        rows = session.execute(
            select(TaskInstance.run_id, TaskInstance.updated_at, TaskInstance.state).where(
                TaskInstance.dag_id == DAG_ID, TaskInstance.state != TaskInstanceState.DEFERRED
            )
        ).all()
    failed = [row.run_id for row in rows if row.state != TaskInstanceState.SCHEDULED]
    assert not failed, f"waits failed: {failed}"
    return {row.run_id: row.updated_at.timestamp() for row in rows}


def forget() -> None:
    """Take all triggers away, as those of a triggerer that has gone."""
    from airflow.models.trigger import Trigger
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(Trigger))


@contextmanager
def triggerer(capacity: int, log: Path, probes: Path) -> Iterator[psutil.Popen]:
    """Airflow's triggerer, for so long; the probe of its loop writes into the folder `probes`."""
    from loop_probe import FOLDER

    airflow = Path(sys.executable).with_name("airflow")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), FOLDER: str(probes)}
    with log.open("w") as output:
        process = psutil.Popen(
            [airflow, "triggerer", "--capacity", str(capacity), "--skip-serve-logs"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            everyone = [process, *process.children(recursive=True)]
            process.terminate()
            _, left = psutil.wait_procs(everyone, timeout=60)
            for one in left:
                one.kill()


def measure(layout: SlurmLayout, home: Path, dag: Any, count: int, triggerers: int) -> Waited:
    """Wait for so many jobs, which begin when all are waited for and one each has been waited for to its end.

    With its first wait a triggerer imports Airflow's API, which no later one waits for.
    """
    from loop_probe import BEATS, STACKS

    probes, work = home / f"probes-{count}", home / "work"
    probes.mkdir()
    options = ("--hold", f"--cpus-per-task={CORES_OF_JOB}")
    jobs = {job.name: job for job in submit(layout, work, TRAINING, trainings(count), *options)}
    first_ones = [(f"first-{count}-{number}", ["3", "5"]) for number in range(triggerers)]
    first = submit(layout, work, TRAINING, first_ones)
    defer(dag, [*first, *jobs.values()])
    each = -(-(count + triggerers) // triggerers)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(triggerer(each, home / f"triggerer-{count}-{number}.log", probes))
            for number in range(triggerers)
        ]
        wait_until(lambda: {job.name for job in first} <= scheduled_at().keys(), "the first ends to be known")
        wait_until(lambda: total(probes, "waits") == count + triggerers, "all to wait")
        quiet = {path.name: len(read_beats(path)) for path in probes.glob(f"*{BEATS}")}
        ids = [job.job_id for job in jobs.values()]
        for place in range(0, count, 100):
            daemons.command(layout, "scontrol", "release", ",".join(ids[place : place + 100]))
        loops = [max(one.children(), key=lambda child: child.memory_info().rss) for one in processes]
        began, used = time.monotonic(), [*map(cpu_s, loops), *map(cpu_s, processes)]
        memory_mb = 0.0

        def all_known() -> bool:
            nonlocal memory_mb
            memory_mb = max(memory_mb, *(loop.memory_full_info().uss / 1e6 for loop in loops))
            return len(scheduled_at().keys() & jobs) == count

        wait_until(all_known, "every end to be known")
        took_s = time.monotonic() - began
        cores = [
            (now - before) / took_s
            for now, before in zip([*map(cpu_s, loops), *map(cpu_s, processes)], used, strict=True)
        ]
    forget()
    known = scheduled_at()
    return Waited(
        delays_s=[known[name] - ended_at(job) for name, job in jobs.items()],
        beats=[read_beats(path)[quiet[path.name] :] for path in sorted(probes.glob(f"*{BEATS}"))],
        stacks=[
            json.loads(line) for path in probes.glob(f"*{STACKS}") for line in path.read_text().splitlines()
        ],
        memory_mb=memory_mb,
        loop_cores=max(cores[:triggerers]),
        supervisor_cores=max(cores[triggerers:]),
    )


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look every two seconds. Exits where it does not come to be so."""
    deadline = time.monotonic() + GIVE_UP_S
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"triggerer_waits: waited {GIVE_UP_S} s for {what}")
        time.sleep(2)


def total(probes: Path, what: str) -> float:
    """The last count of all probes together."""
    from loop_probe import BEATS

    return sum(beats[-1][what] for beats in map(read_beats, probes.glob(f"*{BEATS}")) if beats)


def read_beats(probe: Path) -> list[dict[str, float]]:
    """What the probe has written so far, whole lines alone."""
    lines = probe.read_text().split("\n")[:-1] if probe.exists() else []
    return [json.loads(line) for line in lines]


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def figures_of(waited: Mapping[int, Waited]) -> Iterator[Figure]:
    """Each figure of the last number of waits, beside those of the others."""
    *_, count = waited
    fewest = min(waited)

    def figure(name: str, unit: str, of: Callable[[Waited], float], goal: float | None = None) -> Figure:
        beside = {f"{other} waits": of(one) for other, one in waited.items() if other != count}
        return Figure(f"{count} waits: {name}", of(waited[count]), unit, beside=beside, goal=goal)

    yield figure("squeue and sacct calls", "per minute", lambda one: one.per_minute("commands"))
    yield figure("pieces of logs read", "per minute", lambda one: one.per_minute("reads"))
    yield figure("loop held up, worst", "ms", lambda one: one.worst("busy_ms"), HELD_UP_GOAL_MS)
    yield figure("of it garbage, worst", "ms", lambda one: one.worst("garbage_ms"))
    yield figure("loop late, worst", "ms", lambda one: one.worst("late_ms"))
    yield figure("job's end to event, median", "s", lambda one: statistics.median(one.delays_s))
    yield figure("job's end to event, p95", "s", p95)
    yield figure("cores, event loop", "cores", lambda one: one.loop_cores)
    yield figure("cores, supervisor", "cores", lambda one: one.supervisor_cores)
    yield figure("memory of the event loop", "MB", lambda one: one.memory_mb)
    if count >= 10 * fewest:  # nearer to each other, chance is larger than what they differ in
        grown_kb = 1000 * (waited[count].memory_mb - waited[fewest].memory_mb)
        yield Figure(f"{count} waits: memory of each", grown_kb / (count - fewest), "kB")


def report_stacks(stacks: Sequence[Mapping[str, Any]]) -> None:
    """Print what held the loops up the longest, by the line that ran, on stderr."""
    for one in sorted(stacks, key=lambda stack: -stack["busy_ms"])[:SHOWN_STACKS]:
        print(f"held up for more than {one['busy_ms']:.0f} ms:", *one["stack"], sep="\n  ", file=sys.stderr)


def p95(waited: Waited) -> float:
    """The delay that 95 % of the ends stayed below."""
    delays = waited.delays_s
    return statistics.quantiles(delays, n=20, method="inclusive")[-1] if len(delays) > 1 else delays[0]


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waits", default="10,100,1000", help="one after the other (default: 10,100,1000)")
    parser.add_argument("--interval", type=float, default=5, help="seconds between polls (default: 5)")
    parser.add_argument("--triggerers", type=int, default=1, help="that share the waits (default: 1)")
    parser.add_argument("--database", help="address of an empty database (default: an SQLite file)")
    add_form(parser)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="steptime-") as folder,
        mini_slurm(Path(folder), asked.interval) as layout,
    ):
        os.environ |= {
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": asked.database or database_address(Path(folder)),
        }
        airflow = Path(sys.executable).with_name("airflow")
        subprocess.run([airflow, "db", "migrate"], check=True, capture_output=True)
        dag = make_dag()
        counts = map(int, asked.waits.split(","))
        waited = {count: measure(layout, Path(folder), dag, count, asked.triggerers) for count in counts}
        for one in waited.values():
            report_stacks(one.stacks)
        return show(figures_of(waited), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
