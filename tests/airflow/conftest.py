"""Real jobs on a local cluster of the test's own, and stand-ins for the parts of Airflow that tasks use."""

import asyncio
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from local_home import a_run, home, planned
from stored import as_planned

from . import airflow_home  # noqa: F401 (before anything imports Airflow)

# isort: split

from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.comms import TaskStatesResult
from staged import staged_files
from sync_ledger import ledger

from steptime.airflow import base, installation, triggers
from steptime.airflow.dag_builder import training_dag
from steptime.airflow.task_state import DELETED
from steptime.airflow.triggers import TrainingTrigger
from steptime.airflow.xcom import PlanNames, as_json
from steptime.clusters.config import load_cluster
from steptime.clusters.local.cluster import LocalCluster, connect
from steptime.files import write_whole
from steptime.judging.judgements import run_writer
from steptime.runs.launch import Attempt
from steptime.store.budgets import Owner, release, store_plan
from steptime.store.run_models import Submission
from steptime.store.run_queries import Store

__all__ = ["a_run", "home", "planned"]  # fixtures


_BEGUN_WITHIN_S = 600
STAND_IN = Path(__file__).with_name("stand_in_trainer.py")


@pytest.fixture(autouse=True)
def triggers_settle_soon(monkeypatch):
    """Let triggers fire at once: here no worker has to report "deferred" to an Airflow first."""
    monkeypatch.setattr(triggers, "SETTLING_S", 0.01)


@pytest.fixture
def budget(home):
    """Return a function that sets the monthly GPU-hours of the test's cluster and returns its file."""
    path = (home.parent / "config").resolve() / "clusters" / "local.yaml"
    without = path.read_text()

    def write(gpu_hours):
        path.write_text(f"{without}gpu_hours_per_month: {gpu_hours}\n")
        return path

    return write


@pytest.fixture
def staged(tmp_path):
    """Return what staging returns, with the stand-in trainer in place of the trainer's interpreter."""
    interpreter = tmp_path / "stand-in-interpreter"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}"\n')
    interpreter.chmod(0o755)
    return staged_files(interpreter, tmp_path)


@pytest.fixture
def first_training(staged, tmp_path):
    """Make the first training hang, and yield a function that runs a callback once it hangs.

    The callback gets the name of the training's Slurm node; the function returns a future of that name. With
    `goes_on` the training then begins, otherwise it hangs until it is ended.
    """
    assert staged.python is not None
    interpreter = Path(staged.python)
    first, begun, end = tmp_path / "first", tmp_path / "begun", tmp_path / "end"
    trains = interpreter.read_text().removeprefix("#!/bin/sh\n")
    says = f'echo "$SLURMD_NODENAME" >"{begun}.new"; mv "{begun}.new" "{begun}"'
    hangs = f'while test ! -e "{end}"; do sleep 0.1; done; test -s "{end}" || exit 1'
    interpreter.write_text(f'#!/bin/sh\nif mkdir "{first}" 2>/dev/null; then {says}; {hangs}; fi\n{trains}')

    def strike_when_it_hangs(strike, goes_on):
        deadline = time.monotonic() + _BEGUN_WITHIN_S
        try:
            while not begun.exists():
                assert time.monotonic() < deadline, "no training has begun"
                time.sleep(0.05)
            node = begun.read_text().strip()
            strike(node)
        except BaseException:
            end.touch()  # otherwise the training would hang for ever
            raise
        if goes_on:
            write_whole(end, "go on")
        return node

    with ThreadPoolExecutor(1) as thread:
        yield lambda strike, *, goes_on=False: thread.submit(strike_when_it_hangs, strike, goes_on)


@pytest.fixture(scope="session")
def airflow_database():
    """Create Airflow's tables in the tests' AIRFLOW_HOME."""
    from airflow.utils.db import initdb  # imports Airflow's models

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as `airflow db migrate` does, which would import all that again
        initdb()


@pytest.fixture
def run_dag(airflow_database, home, staged, monkeypatch):
    """Return a function that runs the DAG of Llama 3.1 to its end with these params; nothing is staged."""

    async def nothing(*_):
        return staged

    monkeypatch.setattr("steptime.airflow.operators.stage", nothing)

    def run(**conf):
        return training_dag("steptime_llama3.1-25.04", workload="llama3.1").test(run_conf=conf)

    return run


@pytest.fixture
async def cluster(home):
    """The test's local cluster."""
    config = load_cluster("local")
    opened = connect(config)
    assert isinstance(opened, LocalCluster)
    return opened


@dataclass
class Variables:
    """A stand-in for the Variables in the database of one Airflow."""

    kept: dict[str, str] = field(default_factory=dict)

    def keys(self, prefix):
        return [key for key in self.kept if key.startswith(prefix)]

    def set(self, key, value, *, description):
        self.kept[key] = value


@dataclass
class TaskInstance:
    """A stand-in for Airflow's task instance, with the parts that operators use."""

    max_tries: int = 2
    try_number: int = 1
    dag_id: str = "steptime_llama3.1-25.04"
    run_id: str = "manual__2026-11-21"
    task_id: str = "performance.submit"
    map_index: int = 0
    pushed: dict[str, Any] = field(default_factory=dict)
    dag_runs: dict[str, str] = field(default_factory=dict)
    """The states of DAG runs, by `dag_id/run_id`."""

    def xcom_push(self, key, value):
        self.pushed[key] = value

    def xcom_pull(self, *, task_ids, key, map_indexes, **_):
        return self.pushed.get(key)

    def get_dr_count(self, dag_id, *, run_ids, states):
        return [self.dag_runs.get(f"{dag_id}/{run_id}") in states for run_id in run_ids].count(True)


HANGS = "hangs"
"""Given in place of a state: Airflow never answers."""


@dataclass
class TaskStates:
    """A stand-in for Airflow's answers about a task's state, given in turn; the last one repeats."""

    answers: list[str | Exception | None]
    """None for a task that is cleared or has not begun, DELETED if the task does not exist."""
    map_index: int | None = None
    """Of the task that was asked about last."""

    def send(self, request):
        self.map_index = request.map_index
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer == HANGS:
            time.sleep(3600)
        (run_id,), (task_id,) = request.run_ids or (), request.task_ids or ()
        states = {f"{task_id}_{request.map_index}": answer}
        return TaskStatesResult(task_states={} if answer == DELETED else {run_id: states})


@pytest.fixture
def airflow_says(monkeypatch):
    """Return a function that makes Airflow answer with these states of a task."""

    def say(*answers):
        states = TaskStates(list(answers))
        monkeypatch.setattr("airflow.sdk.execution_time.task_runner.SUPERVISOR_COMMS", states, raising=False)
        return states

    return say


@pytest.fixture
def variables(monkeypatch):
    """Return the Variables of the Airflow to which this test's tasks belong."""
    kept = Variables()
    monkeypatch.setattr(installation, "Variable", kept)
    return kept


RUN_AFTER = datetime(2026, 11, 21, tzinfo=UTC)


def add_to_ledger(submitted):
    """Add to the ledger what was submitted for the first performance run."""
    given = Submission.model_validate(submitted)
    if ledger.find(given.job.name) is not None:
        return
    attempt = Attempt(
        task_key=base.task_key({"ti": TaskInstance()}),  # type: ignore[typeddict-item]
        installation=given.job.installation or installation.this_installation(),
        run_after=RUN_AFTER.timestamp(),
        max_tries=TaskInstance.max_tries,
        run=given.run,
        request=given.request,
        provenance=given.provenance,
    )
    job = attempt.job(given.attempt, load_cluster("local"))
    ledger.add(job.model_copy(update={"name": given.job.name, "created_at": time.time()}))
    ledger.store_submission(given.job)


def noted(job_name):
    """Return the ledger's entry of a job."""
    job = ledger.find(job_name)
    assert job is not None
    return job


def submitted_job(handle):
    """Return the ledger's `Submission`, as JSON, of a job that the task `submit` returned."""
    submitted = noted(handle["job"]).submitted
    assert submitted is not None
    return submitted.model_dump(mode="json")


def state_of(cluster, job_name):
    """Return the state of a job as its cluster reports it."""
    return asyncio.run(cluster.poll([job_name]))[job_name].state


class KilledError(BaseException):
    """The kill of a worker: no code catches it."""


@pytest.fixture
def make_context(variables):
    """Return a function that makes contexts of tries of one task instance.

    Its keyword `submitted` is a `Submission` as JSON, which is added to the ledger.
    """

    def make(*, submitted=None, **task_instance):
        run_after = task_instance.pop("run_after", RUN_AFTER)
        if submitted is not None:
            add_to_ledger(submitted)
        return {
            "ti": TaskInstance(**task_instance),
            "dag_run": SimpleNamespace(run_after=run_after, conf={}),
            "params": {},
        }

    return make


@cache
def _shipped_dag(**arguments):
    return training_dag("steptime_llama3.1-25.04", workload="llama3.1", **arguments)


def task_of(task_id, **rendered):
    """Return a task of the shipped DAG, with its templated fields as Airflow would have rendered them."""
    return _task_of(_shipped_dag(), task_id, rendered)


def wait_task(submitted, **arguments):
    """Return the task that waits for the job of a performance run; the arguments are those of the DAG."""
    handle = {"cluster": submitted["job"]["cluster"], "job": submitted["job"]["name"]}
    return _task_of(_shipped_dag(**arguments), "performance.wait", {"submitted": handle})


def trigger_of(submitted, context, **arguments):
    """Return the trigger that the task of `wait_task` defers to."""
    with pytest.raises(TaskDeferred) as deferred:
        wait_task(submitted, **arguments).execute(context)
    trigger = deferred.value.trigger
    assert isinstance(trigger, TrainingTrigger)
    return trigger


async def event_of(trigger):
    """Return the payload of the event that a trigger fires."""
    async with aclosing(trigger.run()) as events:
        return (await anext(events)).payload


def _task_of(dag, task_id, rendered):
    task = copy(dag.get_task(task_id))
    assert set(rendered) <= set(task.template_fields)
    for name, value in rendered.items():
        setattr(task, name, value)
    return task


def handle_of(result):
    """Return the handle of a result that `parse` and `validate` pass on."""
    return {"cluster": result.job.cluster, "job": result.job.name}


def checked_run(result):
    """Store a result as `parse` and `validate` do; return what `validate` passes on."""
    run_writer(Store()).store_measurement(result)
    run_writer(Store()).store_verdict(result.job.name, result.verdict)
    return handle_of(result)


def logged(execute):
    """Return the lines that a task logs."""
    with structlog.testing.capture_logs() as lines:
        execute()
    return [line["event"] for line in lines if "outside of the Task Runner" not in line["event"]]


def names_of(plan, **changes):
    """Return what `check_params` returns for a plan."""
    return as_json(PlanNames.of(plan).model_copy(update=changes))


def submit_task(run, staged):
    """Store the plan of a performance run, without a reservation, and return its task `submit`."""
    owner = Owner(installation.this_installation().id, TaskInstance.dag_id, TaskInstance.run_id)
    store_plan(owner, [as_planned(run)])
    release(owner)
    return task_of("performance.submit", run=run.name, staged=staged.model_dump(mode="json"))


@pytest.fixture
def submission(a_run, staged, make_context):
    """Return a function that submits a run of the stand-in in this environment, as a `Submission`."""

    def submit(**environment):
        return submitted_job(submit_task(a_run(**environment), staged).execute(make_context()))

    return submit
