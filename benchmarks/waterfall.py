"""Where the time of a DAG run went: Airflow's pace, steptime's tasks, and the jobs' start, imports and steps.

    python benchmarks/waterfall.py [DAG_ID DAG_RUN_ID] [--json]

Asks the Airflow of `steptime up`; without a name, for its newest DAG run with results. There is a bar for
each task, and one for each job below the task that waits for it: `.` queued, `-` start, imports, set-up and
checkpoints, `#` steps. The sums below are of the critical path: the last task that ended, what it waited for
last, and so on.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.airflow.dag_builder import training_dag
from steptime.cli.airflow_client import airflow_client
from steptime.results.store import Store
from steptime.service.rest import AirflowClient

WIDTH = 60
"""Characters of the longest bar."""
AIRFLOW, OURS, START, STEPS, NOTICED = (
    "Airflow, between tasks",
    "steptime's tasks",
    "jobs: queue, imports, set-up, checkpoints",
    "jobs: training steps",
    "from a job's end to that of the task that waits",
)


@dataclass(frozen=True)
class Job:
    """What a cluster ran, unix seconds."""

    submitted: float
    started: float
    ended: float
    steps_s: float
    """Sum of the step times, the last of the job as far as bars show."""


@dataclass(frozen=True)
class Task:
    """One task, or one mapped instance of it; unix seconds."""

    task_id: str
    map_index: int
    label: str
    start: float
    end: float
    job: Job | None = None


def tasks_of(
    client: AirflowClient, dag_id: str, run_id: str, jobs: Mapping[tuple[str, int], Job]
) -> list[Task]:
    """The tasks that ran, in the order of their start."""
    found = [
        Task(
            *(one.task_id, one.map_index, one.label),
            *(one.start_date.timestamp(), one.end_date.timestamp()),
            jobs.get((one.task_id, one.map_index)),
        )
        for one in client.task_instances(dag_id, run_id)
        if one.start_date and one.end_date
    ]
    return sorted(found, key=lambda task: (task.start, task.end))


def jobs_of(store: Store, rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], Job]:
    """The jobs of a DAG run by task and map index of what waited for them."""
    jobs = {}
    for row in rows:
        steps_s = sum(step["step_time_s"] or 0 for step in store.steps(row["job_name"]))
        times = (row["submitted_at"], row["started_at"], row["ended_at"])
        jobs[row["task_id"], row["map_index"]] = Job(*times, steps_s)
    return jobs


def critical_path(tasks: Sequence[Task], upstream: Mapping[str, set[str]]) -> Iterator[tuple[float, Task]]:
    """From the last task back to the first: when what it waited for had ended, and the task."""
    task: Task | None = max(tasks, key=lambda one: one.end)
    while task is not None:
        before = [one for one in tasks if _waited_for(one, task, upstream)]
        last = max(before, key=lambda one: one.end, default=None)
        yield (last.end if last else task.start), task
        task = last


def _waited_for(one: Task, task: Task, upstream: Mapping[str, set[str]]) -> bool:
    """A task in a mapped group waits for its own instance of another of that group."""
    same_group = one.task_id.partition(".")[0] == task.task_id.partition(".")[0]
    return (
        one.task_id in upstream[task.task_id]
        and one.end <= task.end
        and (one.map_index == task.map_index or not same_group)
    )


def sums(path: Iterable[tuple[float, Task]]) -> Counter[str]:
    """Seconds of the critical path by what they were spent for."""
    spent: Counter[str] = Counter()
    for ready, task in path:
        begin = max(ready, task.start)
        spent[AIRFLOW] += begin - ready
        if task.job is None:
            spent[OURS] += task.end - begin
            continue
        ended = min(task.job.ended, task.end)
        spent[STEPS] += task.job.steps_s
        spent[START] += ended - begin - task.job.steps_s
        spent[NOTICED] += task.end - ended
    return spent


def bars(tasks: Sequence[Task]) -> Iterator[str]:
    """A line for each task, and one for each job."""
    zero, end = tasks[0].start, max(task.end for task in tasks)
    second = WIDTH / (end - zero)
    wide = max(len(task.label) for task in tasks)

    def line(label: str, begin: float, pieces: Sequence[tuple[str, float]]) -> str:
        edges, bar = [begin], ""
        for sign, seconds in pieces:
            edges.append(edges[-1] + seconds)
            bar += sign * (round((edges[-1] - zero) * second) - round((edges[-2] - zero) * second))
        lead = " " * round((begin - zero) * second)
        return f"{label:{wide}} {begin - zero:7.1f} {edges[-1] - begin:7.1f}  {lead}{bar or '|'}"

    yield f"{'task':{wide}} {'from s':>7} {'takes s':>7}"
    for task in tasks:
        yield line(task.label, task.start, [("=", task.end - task.start)])
        if job := task.job:
            queued, ran = job.started - job.submitted, job.ended - job.started
            yield line("  job", job.submitted, [(".", queued), ("-", ran - job.steps_s), ("#", job.steps_s)])


def main() -> int:
    """Print the waterfall, or its sums as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dag_run", nargs="*", metavar="DAG_ID DAG_RUN_ID", help="(default: the newest one)")
    parser.add_argument("--json", action="store_true", help="print the sums of the critical path alone")
    arguments = parser.parse_args()
    store = Store()
    newest = next(iter(store.results(limit=1)), None)
    if arguments.dag_run and len(arguments.dag_run) != 2:
        parser.error("name both, the DAG and its run, or none")
    if not arguments.dag_run and (newest is None or newest["dag_id"] is None):
        print("waterfall: the store has no run of a DAG: begin with 'steptime demo'", file=sys.stderr)
        return 1
    dag_id, run_id = arguments.dag_run or (newest["dag_id"], newest["dag_run_id"])
    rows = store.runs_of(dag_id, run_id)
    if not rows:
        print(f"waterfall: the store has no results of '{dag_id} {run_id}'", file=sys.stderr)
        return 1
    with airflow_client(None, None) as client:
        tasks = tasks_of(client, dag_id, run_id, jobs_of(store, rows))
    dag = training_dag(dag_id, workload=rows[0]["workload"])  # every training DAG has the same tasks
    upstream = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    spent = sums(critical_path(tasks, upstream))
    if arguments.json:
        print(json.dumps({name: round(seconds, 2) for name, seconds in spent.items()}, indent=2))
        return 0
    print("\n".join(bars(tasks)))
    print(f"\ncritical path of {dag_id} {run_id}")
    for name, seconds in spent.most_common():
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(spent.values()):8.1f} s  from the first task's start to the last one's end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
