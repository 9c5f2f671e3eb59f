"""A sweep of hundreds of cells through a whole Airflow: what its processes take, and how late results come.

    python benchmarks/sweep_at_once.py [--cells 300] [--triggerers 2] [--json]
    python benchmarks/sweep_at_once.py --database postgresql+psycopg2://… --broker redis://… --workers 2

Starts a mini Slurm, where stand-ins print the lines of trainings, and Airflow's own programs as `steptime
up` configures them: API server, scheduler, DAG processor and triggerers. Airflow's database is SQLite, or
the empty one that `--database` names. With a broker the tasks run in Celery workers, else in the
scheduler's. All cells may run at once, as the cluster has no pool. A result is so late as the store has it
after its job's end.

Everything shares one machine, jobs included: processor seconds show what each role needs, delays what became
of it on this machine.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml

from figures import Figure, add_form, show
from slurm_jobs import CLUSTER, mini_slurm
from steptime.errors import SystemFailure
from steptime.mini_slurm import daemons
from steptime.mini_slurm.layout import SlurmLayout

ROOT = Path(__file__).parents[1]
SWEEP = "many"
SWEEP_DAG = "scaling_sweep"
GPUS = (1, 2, 4)
REPEATS_AT_MOST = 100
STEP_S = "0.1"
LOOK_EVERY_S = 2.0
TASKS_AT_ONCE = 6
"""As `steptime up` sets it for two cores; of all workers together."""
GIVE_UP_S = 6 * 3600
READY_WITHIN_S = 300
AIRFLOW = (sys.executable, "-P", "-m", "airflow")
"""Programs of their own, not forks of a supervisor: what each takes is counted by its process."""


@dataclass
class Role:
    """What the processes of one role took, their children included."""

    cpu_s: float = 0.0
    """Processor seconds."""
    memory_mb: float = 0.0
    """The most that was seen of all of them together, shared pages by their share."""


@dataclass
class Swept:
    """What a sweep came to."""

    took_s: float
    late_s: Sequence[float]
    """From the end of each job to its result in the store."""
    waits_s: Mapping[str, Sequence[float]]
    """Of each step on a task's way to its start, seconds by task."""
    cells: int
    failed: int
    calls: int
    """Questions for the queue that Slurm's controller has answered."""


def write_config(config: Path, folder: Path, cells: int) -> None:
    """A sweep of so many cells, on the mini Slurm with a stand-in for the trainer."""
    sys.path.append(str(ROOT / "tests"))
    from stand_ins.trainer_python import PROGRAM, python_of_stand_in

    cluster = config / "clusters" / f"{CLUSTER}.yaml"
    python = python_of_stand_in(folder, PROGRAM)
    cluster.write_text(f"{cluster.read_text()}python: {python}\ngpus_per_node: 8\n")
    (config / "sweeps").unlink()
    (config / "sweeps").mkdir()
    repeats, over = divmod(cells, len(GPUS))
    if over or not 0 < repeats <= REPEATS_AT_MOST:
        raise SystemExit(
            f"sweep_at_once: {cells} cells are no multiple of {len(GPUS)} up to {len(GPUS) * REPEATS_AT_MOST}"
        )
    run = {
        "workload": "llama3.1",
        "size": "tiny",
        "gpus": list(GPUS),
        "environment": {"STAND_IN_STEP_S": STEP_S},
    }
    sweep = {
        "name": SWEEP,
        "description": "As many cells as there are at once",
        "cluster": CLUSTER,
        "repeats": repeats,
        "confirm": False,
        "gpu_hours_max": 10_000,
        "runs": [run],
    }
    (config / "sweeps" / f"{SWEEP}.yaml").write_text(yaml.safe_dump(sweep))


def airflow_environment(port: int, database: str | None, broker: str | None) -> dict[str, str]:
    """That of Airflow's programs: the configuration of `steptime up`, but for what was asked."""
    from steptime.service.standalone_config import child_environment, write_config

    write_config(port)
    own = {"AIRFLOW__CORE__PARALLELISM": str(TASKS_AT_ONCE), "PYTHONPATH": os.pathsep.join(sys.path)}
    own |= {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW_CONN_")}
    if database:
        own["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = database
    if broker:
        own |= {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": broker,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        }
    return child_environment() | own


@contextmanager
def running(
    role: str, words: Sequence[str], environment: Mapping[str, str], logs: Path
) -> Iterator[psutil.Popen]:
    """One of Airflow's programs, for so long."""
    with (logs / f"{role}.log").open("w") as output:
        process = psutil.Popen(
            [*AIRFLOW, *words], env=dict(environment), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            everyone = family(process)
            if process.poll() is not None:
                print(f"{role} ended by itself, exit code {process.returncode}:", file=sys.stderr)
                print((logs / f"{role}.log").read_text()[-2000:], file=sys.stderr)
            with suppress(psutil.NoSuchProcess):
                process.terminate()
            _, left = psutil.wait_procs(everyone, timeout=60)
            for one in left:
                one.kill()


def family(process: psutil.Process) -> list[psutil.Process]:
    """A process with all that it has started, as far as they live."""
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


class Accounts(threading.Thread):
    """Looks at the processes of each role every two seconds, until it is asked to stop."""

    def __init__(self, processes: Mapping[str, Sequence[psutil.Process]]) -> None:
        super().__init__(daemon=True)
        self.processes = processes
        self.roles: dict[str, Role] = defaultdict(Role)
        self.stop = threading.Event()

    def run(self) -> None:
        """Look until `stop` is set."""
        while not self.stop.wait(LOOK_EVERY_S):
            for role, processes in self.processes.items():
                self._look(self.roles[role], processes)

    def _look(self, role: Role, processes: Sequence[psutil.Process]) -> None:
        cpu_s = memory = 0.0
        for process in processes:
            for one in family(process):
                with suppress(psutil.NoSuchProcess):
                    cpu_s += sum(one.cpu_times()[:4])  # its own, and of children that have ended
                    memory += one.memory_full_info().pss
        role.cpu_s = max(role.cpu_s, cpu_s)
        role.memory_mb = max(role.memory_mb, memory / 1e6)


def wait_until(is_so: Callable[[], bool], what: str, within_s: float, logs: Path) -> None:
    """Look every two seconds; an API server that is too busy to answer is asked again.

    Exits with the ends of all logs if it does not come to be so.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(SystemFailure):
            if is_so():
                return
        time.sleep(LOOK_EVERY_S)
    tails = "\n".join(f"{log.name}: {log.read_text()[-1000:]}" for log in sorted(logs.glob("*.log")))
    raise SystemExit(f"sweep_at_once: waited {within_s:.0f} s for {what}\n{tails}")


def queue_questions(layout: SlurmLayout) -> int:
    """How often Slurm's controller was asked for jobs since its counts began anew."""
    lines = daemons.command(layout, "sdiag").splitlines()
    counted = (line.split("count:")[1].split()[0] for line in lines if "REQUEST_JOB_INFO" in line)
    return sum(map(int, counted))


def sweep(
    port: int, layout: SlurmLayout, logs: Path, programs: Mapping[str, Sequence[psutil.Popen]]
) -> tuple[float, int]:
    """Start the sweep and wait for its end; the seconds that it took, and the questions for the queue.

    Exits if one of Airflow's programs, by role, has ended: nobody here starts it again.
    """
    from steptime.service.pools import set_pools
    from steptime.service.rest import AirflowClient
    from steptime.service.standalone_config import ADMIN, password

    with AirflowClient(f"http://127.0.0.1:{port}", ADMIN, password()) as client:
        set_pools(client, print)
        daemons.command(layout, "sdiag", "--reset")
        began = time.monotonic()
        started = client.trigger(SWEEP_DAG, {"sweep": SWEEP}, patience_s=READY_WITHIN_S)

        def ended() -> bool:
            for role, processes in programs.items():
                if any(process.poll() is not None for process in processes):
                    raise SystemExit(f"sweep_at_once: the {role} ended by itself")
            return client.dag_run(SWEEP_DAG, started.dag_run_id).has_ended

        wait_until(ended, "the sweep's end", GIVE_UP_S, logs)
        return time.monotonic() - began, queue_questions(layout)


def task_waits(database: str) -> dict[str, list[float]]:
    """Seconds of each task on its way: until the scheduler queued it, and until a worker began."""
    from sqlalchemy import create_engine, text

    query = text(
        "SELECT scheduled_dttm, queued_dttm, start_date FROM task_instance WHERE start_date IS NOT NULL"
    )
    waits: dict[str, list[float]] = {"scheduled to queued": [], "queued to begun": []}
    engine = create_engine(database)
    with engine.connect() as connection:
        for scheduled, queued, start in connection.execute(query):
            moments = [as_unix(one) for one in (scheduled, queued, start)]
            for (one, other), waited in zip(pairwise(moments), waits.values(), strict=True):
                if one is not None and other is not None and other >= one:
                    waited.append(other - one)
    engine.dispose()
    return waits


def as_unix(moment: Any) -> float | None:
    """Unix seconds of what a database gives for a time: SQLite has text."""
    from datetime import UTC, datetime

    if moment is None:
        return None
    read = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return float((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())


def measure(folder: Path, layout: SlurmLayout, asked: argparse.Namespace) -> tuple[Swept, Mapping[str, Role]]:
    """Run the sweep once in an Airflow of its own."""
    from steptime.results.store import Store
    from steptime.service.supervisor import COMPONENTS

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = airflow_environment(port, asked.database, asked.broker)
    database = asked.database or f"sqlite:///{environment['AIRFLOW_HOME']}/airflow.db"
    logs = folder / "logs"
    logs.mkdir()
    subprocess.run([*AIRFLOW, "db", "migrate"], env=environment, check=True, capture_output=True)
    programs: dict[str, list[tuple[str, ...]]] = {name: [words] for name, words in COMPONENTS.items()}
    programs["triggerer"] *= asked.triggerers
    if asked.broker:
        slots = str(max(1, TASKS_AT_ONCE // asked.workers))
        programs["worker"] = [
            (
                "celery",
                "worker",
                "--concurrency",
                slots,
                "--skip-serve-logs",
                "--celery-hostname",
                f"w{number}@%h",
            )
            for number in range(asked.workers)
        ]
    with ExitStack() as stack:
        processes = {
            role: [
                stack.enter_context(running(f"{role}-{number}", words, environment, logs))
                for number, words in enumerate(each)
            ]
            for role, each in programs.items()
        }
        accounts = Accounts(processes)
        wait_until(lambda: answers(port), "the API server", READY_WITHIN_S, logs)
        accounts.start()
        took_s, calls = sweep(port, layout, logs, processes)
        accounts.stop.set()
        accounts.join()
    rows = Store().results(include_rejected=True)
    late = [row["published_at"] - row["ended_at"] for row in rows if row["ended_at"]]
    invalid = sum(row["state"] != "valid" for row in rows)
    failed = invalid + asked.cells - len(rows)
    return Swept(took_s, late, task_waits(database), asked.cells, failed, calls), accounts.roles


def answers(port: int) -> bool:
    """Whether something listens there."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def figures_of(swept: Swept, roles: Mapping[str, Role]) -> Iterator[Figure]:
    """What was measured, each named with the number of cells."""
    named = f"{swept.cells} cells"
    yield Figure(f"{named}: without a valid result", swept.failed, "cells", goal=0)
    yield Figure(f"{named}: from trigger to end", swept.took_s, "s")
    yield Figure(f"{named}: questions for the queue", 60 * swept.calls / swept.took_s, "per minute")
    for what, seconds in (("job's end to result", swept.late_s), *swept.waits_s.items()):
        yield Figure(f"{named}: {what}, median", statistics.median(seconds), "s")
        p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
        yield Figure(f"{named}: {what}, p95", p95, "s")
    for role, taken in roles.items():
        yield Figure(f"{named}: {role}, each cell", taken.cpu_s / swept.cells, "CPU s")
        yield Figure(f"{named}: {role}, cores", taken.cpu_s / swept.took_s, "cores")
        yield Figure(f"{named}: {role}, memory", taken.memory_mb, "MB")


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", type=int, default=300, help="a multiple of 3 (default: 300)")
    parser.add_argument("--interval", type=float, default=5, help="seconds between polls (default: 5)")
    parser.add_argument("--triggerers", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--database", help="address of an empty database (default: an SQLite file)")
    parser.add_argument("--broker", help="address of a broker: tasks run in Celery workers")
    parser.add_argument("--workers", type=int, default=2, help="of Celery, how many (default: 2)")
    add_form(parser)
    asked = parser.parse_args()
    if asked.broker and not asked.database:
        parser.error("with --broker give --database, too: Celery workers share no SQLite file")
    with (
        tempfile.TemporaryDirectory(prefix="steptime-") as folder,
        mini_slurm(Path(folder), asked.interval) as layout,
    ):
        write_config(Path(os.environ["STEPTIME_CONFIG_DIR"]), Path(folder), asked.cells)
        swept, roles = measure(Path(folder), layout, asked)
        return show(figures_of(swept, roles), as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
