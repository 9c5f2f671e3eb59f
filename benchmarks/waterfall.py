"""Where the time of a DAG run went: Airflow's pace, steptime's tasks, and the jobs' start, imports and steps.

    python benchmarks/waterfall.py [DAG_ID DAG_RUN_ID] [--json]

Asks the Airflow of `steptime up`; without a name, for its newest DAG run with results. There is a bar for
each task, with what Airflow took until it began, and one for each job below the task that waits for it: `.`
queued, `:` imports of NeMo, `-` start, set-up and checkpoints, `#` steps. They are drawn in this order,
whatever the order in the job. The sums below are of the critical path: the last task that ended, what it
waited for last, and so on. While a job is queued, what counts is what another job of the DAG run did
meanwhile. What is neither imports nor steps is the pipeline, which may take ten seconds for each run; exit
code 2 if it takes longer.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from figures import Figure, add_form, show
from steptime.airflow.dag_builder import training_dag
from steptime.cli.airflow_client import airflow_client
from steptime.results.store import Store
from steptime.service.rest import AirflowClient

WIDTH = 60
"""Characters of the longest bar."""
PIPELINE_GOAL_S = 10
"""For each run, besides imports and steps."""
AIRFLOW, OURS, QUEUE, START, IMPORTS, STEPS, NOTICED = (
    "Airflow, between tasks",
    "steptime's tasks",
    "jobs: queued, and none of them runs",
    "jobs: start, set-up, checkpoints",
    "jobs: imports of NeMo",
    "jobs: training steps",
    "from a job's end to that of the task that waits",
)


@dataclass(frozen=True)
class Job:
    """What a cluster ran, unix seconds."""

    submitted: float
    started: float
    ended: float
    imports_s: float
    """Of its first rank; 0 where it has not recorded them, as that of NeMo 1."""
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
        imports_s = (store.parsed_log(row["job_name"])["log"]["started"] or {}).get("imports_s") or 0.0
        jobs[row["task_id"], row["map_index"]] = Job(*times, imports_s, steps_s)
    return jobs


def critical_path(tasks: Sequence[Task], upstream: Mapping[str, set[str]]) -> Iterator[tuple[float, Task]]:
    """From the last task back to the first: when what it waited for had ended, and the task."""
    task: Task | None = max(tasks, key=lambda one: one.end)
    while task is not None:
        last = _last_before(task, tasks, upstream)
        yield (last.end if last else task.start), task
        task = last


def _last_before(task: Task, tasks: Iterable[Task], upstream: Mapping[str, set[str]]) -> Task | None:
    """Of what a task waited for, that which ended last."""
    before = [one for one in tasks if _waited_for(one, task, upstream)]
    return max(before, key=lambda one: one.end, default=None)


def _waited_for(one: Task, task: Task, upstream: Mapping[str, set[str]]) -> bool:
    """A task in a mapped group waits for its own instance of another of that group."""
    same_group = one.task_id.partition(".")[0] == task.task_id.partition(".")[0]
    return (
        one.task_id in upstream[task.task_id]
        and one.end <= task.end
        and (one.map_index == task.map_index or not same_group)
    )


def sums(path: Iterable[tuple[float, Task]], jobs: Iterable[Job]) -> dict[str, float]:
    """Seconds of the critical path by what they were spent for; `jobs` are all of the DAG run."""
    in_turn = sorted(jobs, key=lambda job: job.started)
    spent: dict[str, float] = defaultdict(float)
    for ready, task in path:
        begin = max(ready, task.start)
        spent[AIRFLOW] += begin - ready
        if task.job is None:
            spent[OURS] += task.end - begin
            continue
        now, ended = begin, min(task.job.ended, task.end)
        for job in in_turn[: in_turn.index(task.job) + 1]:
            until = min(job.ended, ended)
            if until <= now:
                continue
            queued = max(job.started - now, 0)
            spent[QUEUE] += queued
            for name, seconds in _share(job, until - now - queued).items():
                spent[name] += seconds
            now = until
        spent[NOTICED] += task.end - now
    return spent


def _share(job: Job, seconds: float) -> dict[str, float]:
    """What so many seconds of a job were spent for, as if it did all of it all the time."""
    whole = job.ended - job.started
    trained = {IMPORTS: job.imports_s * seconds / whole, STEPS: job.steps_s * seconds / whole}
    return trained | {START: seconds - sum(trained.values())}


def bars(tasks: Sequence[Task], upstream: Mapping[str, set[str]]) -> Iterator[str]:
    """A line for each task, and one for each job."""
    zero, end = tasks[0].start, max(task.end for task in tasks)
    second = WIDTH / (end - zero)
    wide = max(len(task.label) for task in tasks)

    def line(label: str, waited: str, begin: float, pieces: Sequence[tuple[str, float]]) -> str:
        edges, bar = [begin], ""
        for sign, seconds in pieces:
            edges.append(edges[-1] + seconds)
            bar += sign * (round((edges[-1] - zero) * second) - round((edges[-2] - zero) * second))
        lead = " " * round((begin - zero) * second)
        return f"{label:{wide}} {waited:>9} {begin - zero:7.1f} {edges[-1] - begin:7.1f}  {lead}{bar or '|'}"

    yield f"{'task':{wide}} {'Airflow s':>9} {'from s':>7} {'takes s':>7}"
    for task in tasks:
        last = _last_before(task, tasks, upstream)
        waited = f"{task.start - last.end:.1f}" if last else ""
        yield line(task.label, waited, task.start, [("=", task.end - task.start)])
        if job := task.job:
            queued, trained = job.started - job.submitted, job.imports_s + job.steps_s
            rest = job.ended - job.started - trained
            pieces = [(".", queued), (":", job.imports_s), ("-", rest), ("#", job.steps_s)]
            yield line("  job", "", job.submitted, pieces)


def figures(spent: Mapping[str, float], runs: int) -> Iterator[Figure]:
    """The sums, what takes longest first, and of what is not training how much each run has."""
    for name, seconds in sorted(spent.items(), key=lambda one: -one[1]):
        yield Figure(name, seconds, "s")
    whole = sum(spent.values())
    yield Figure("from the first task's start to the last one's end", whole, "s")
    pipeline_s = (whole - spent[IMPORTS] - spent[STEPS]) / runs
    yield Figure("pipeline, each run", pipeline_s, "s", goal=PIPELINE_GOAL_S)


def newest_dag_run(store: Store) -> tuple[str, str]:
    """The ids of the newest run's DAG and DAG run; exits where it has none."""
    for row in store.results(limit=1):
        if row["dag_id"] is not None:
            return row["dag_id"], row["dag_run_id"]
    raise SystemExit("waterfall: the store has no run of a DAG: begin with 'steptime demo'")


def main() -> int:
    """Print the waterfall, or its sums alone as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dag_run", nargs="*", metavar="DAG_ID DAG_RUN_ID", help="(default: the newest one)")
    add_form(parser)
    arguments = parser.parse_args()
    store = Store()
    if arguments.dag_run and len(arguments.dag_run) != 2:
        parser.error("name both, the DAG and its run, or none")
    dag_id, run_id = arguments.dag_run or newest_dag_run(store)
    rows = store.runs_of(dag_id, run_id)
    if not rows:
        print(f"waterfall: the store has no results of '{dag_id} {run_id}'", file=sys.stderr)
        return 1
    jobs = jobs_of(store, rows)
    with airflow_client(None, None) as client:
        tasks = tasks_of(client, dag_id, run_id, jobs)
    dag = training_dag(dag_id, workload=rows[0]["workload"])  # every training DAG has the same tasks
    upstream = {task.task_id: task.upstream_task_ids for task in dag.tasks}
    spent = sums(critical_path(tasks, upstream), jobs.values())
    if not arguments.json:
        print("\n".join(bars(tasks, upstream)))
        print(f"\ncritical path of {dag_id} {run_id}")
    return show(figures(spent, len(rows)), as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
