"""What each task of a run does in each state: its log, what it returns or raises, and what is in the ledger.

The tales are kept in tests/golden/tasks. After an intended change, rewrite them and review `git diff`:

    STEPTIME_UPDATE_GOLDEN=1 .venv/bin/pytest tests/airflow/test_task_tales.py
"""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
from airflow.sdk.exceptions import TaskDeferred
from kept import NAMES_OF_JOBS, assert_kept, masked

from steptime.airflow.assets import published_results
from steptime.airflow.base import task_key
from steptime.clusters.base import CommandResult, JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster
from steptime.store.ledger import Ledger
from steptime.store.run_queries import Store
from steptime.waiting import poll_until

from .conftest import event_of, submitted_job, task_of

pytestmark = pytest.mark.long

MASKED = {
    **NAMES_OF_JOBS,
    r"\b1[789]\d{8}(\.\d+)?\b": "TIME",
    r"\bread \d+ bytes\b": "read N bytes",
}
"""What differs from run to run, and what stands for it."""


class Tasks:
    """Executes tasks of one DAG run and tells what they do; stands in for Airflow's worker and triggerer."""

    def __init__(self, make_context, folder):
        self._make_context, self._folder = make_context, folder
        self.tale = []
        self.options = {"params": {}, "conf": {}}
        self.returned = {}
        self.failures = {}

    def run(self, what, task_id, *, event=None, **rendered):
        """Execute a task, or resume it with an event; return what it returns or the trigger it defers to."""
        instance = {name: rendered.pop(name) for name in ("max_tries", "map_index") if name in rendered}
        context = self._make_context(task_id=task_id, **instance)
        context["params"], context["dag_run"].conf = self.options["params"], self.options["conf"]
        asset = SimpleNamespace(extra={})
        context["outlet_events"] = {published_results("llama3.1"): asset}
        context["ti"].xcom_pull = lambda task_ids, key, map_indexes: self.failures.get(
            (task_ids, map_indexes)
        )
        task = task_of(task_id, **rendered)
        result = None
        with structlog.testing.capture_logs() as lines:
            try:
                result = task.execute(context) if event is None else task.execute_complete(context, event)
                came = f"returns {result}"
            except TaskDeferred as deferred:
                result = deferred.trigger
                kind, arguments = result.serialize()
                came = f"waits in {kind.rpartition('.')[2]} {arguments} for {deferred.method_name}"
            except (Exception, SystemExit) as error:
                came = f"raises {type(error).__name__}: {error}"
                self.failures[task_id, 0] = str(error)
        logged = [
            f"{line['log_level']}: {line['event']}"
            for line in lines
            if "outside of the Task" not in line["event"]
        ]
        label = [f"label {task.cell}"] if getattr(task, "cell", "") else []
        news = [f"asset {asset.extra}"] if asset.extra else []
        self.tale.append("\n".join([f"== {task_id}: {what}", *logged, *label, *news, f"-> {came}"]))
        return result

    def wait(self, what, group="performance", **rendered):
        """Execute the task `wait` until its trigger fires, and resume it."""
        trigger = self.run(f"{what}: begins", f"{group}.wait", **rendered)
        event = asyncio.run(event_of(trigger))
        return self.run(f"{what}: is resumed", f"{group}.wait", event=event, **rendered)

    def show_ledger(self):
        """Add the jobs of the ledger to the tale, and the stored results."""
        jobs = asyncio.run(Ledger(print).jobs_of_dag_run(task_key(self._make_context())))
        shown = [
            {
                "job": job.name,
                "attempt": job.attempt,
                "state": job.state,
                "reason": job.reason,
                "ended": job.ended_at is not None,
                "abandoned": job.abandoned,
            }
            for job in jobs
        ]
        results = [
            {name: row[name] for name in ("job_name", "state", "step_time_mean_s", "queue_wait_s")}
            for row in Store().results(include_rejected=True)
        ]
        self.tale.append("\n".join(["== the ledger and the results", *map(str, [*shown, *results])]))

    def told(self):
        text = "\n\n".join(self.tale) + "\n"
        return masked(text, {re.escape(str(self._folder)): "FOLDER", **MASKED})


@pytest.fixture
def tasks(
    home,
    make_context,
    staged,
    tmp_path,
    monkeypatch,
):
    async def stage(cluster, config, run, report):
        for line in (f"for {run.name}", f"on {cluster.name} as in {config.name}.yaml"):
            report(line)
        return staged

    submit, poll = LocalCluster.submit, LocalCluster.poll
    submitted_at = {}

    async def submit_and_note(self, spec):
        job = await submit(self, spec)
        submitted_at[job.name] = job.submitted_at
        return job

    async def poll_with_times(self, names):
        """Let each job begin half a minute after its submission and take ten minutes."""
        return {
            name: status.model_copy(
                update={
                    "started_at": status.started_at and submitted_at[name] + 30,
                    "ended_at": status.ended_at and submitted_at[name] + 630,
                }
            )
            for name, status in (await poll(self, names)).items()
        }

    monkeypatch.setattr("steptime.airflow.operators.stage", stage)
    monkeypatch.setattr(LocalCluster, "submit", submit_and_note)
    monkeypatch.setattr(LocalCluster, "poll", poll_with_times)
    return Tasks(make_context, tmp_path)


def await_start(handle):
    """Wait until the stand-in has begun to write its log."""
    log = Path(submitted_job(handle)["job"]["log_path"])
    assert poll_until(lambda: log.exists() and log.stat().st_size, every_s=0.02, timeout_s=300)


def submit(tasks, what="begins", **environment):
    """Plan, stage and submit one run of the stand-in."""
    tasks.options["conf"] = {"environment": environment, "gpus": "1"}
    plan = tasks.run("of one run", "check_params")
    staged = tasks.run("what it needs", "stage", plan=plan)
    handle = tasks.run(what, "performance.submit", run=plan["runs"][0], staged=staged)
    await_start(handle)
    return {"plan": plan, "staged": staged, "handle": handle}


def test_a_run_that_succeeds(tasks):
    begun = submit(tasks, STAND_IN_STEP_S="0.001")
    tasks.wait("of a job that succeeds", submitted=begun["handle"])
    parsed = tasks.run("of a job that succeeded", "performance.parse")
    checked = tasks.run("all is well", "performance.validate", handle=parsed)
    tasks.run("all is well", "performance.publish", handle=checked)
    tasks.run("nothing is left to end", "performance.end")
    tasks.run("of a whole run", "report", plan=begun["plan"])
    tasks.show_ledger()
    tasks.run("is cleared after its end", "performance.wait", submitted=begun["handle"], max_tries=5)
    assert_kept("tasks/succeeds.txt", tasks.told())


def test_a_run_that_fails(tasks):
    begun = submit(tasks, STAND_IN_STEP_S="0.001", STAND_IN="out_of_memory")
    tasks.wait("of a job that fails", submitted=begun["handle"])
    parsed = tasks.run("of a job that failed", "performance.parse")
    tasks.run("of a failed run", "performance.validate", handle=parsed)
    tasks.run("after a job that failed", "performance.end")
    tasks.run("of a failed run", "report", plan=begun["plan"])
    tasks.show_ledger()
    assert_kept("tasks/fails.txt", tasks.told())


def test_a_run_that_is_tried_again_cleared_and_ended(tasks, cluster):
    begun = submit(tasks, STAND_IN="hang")
    given = {"run": begun["plan"]["runs"][0], "staged": begun["staged"]}
    tasks.run("is tried again", "performance.submit", **given)
    second = tasks.run("is cleared", "performance.submit", max_tries=3, **given)
    await_start(second)
    waiting = {"submitted": second, "max_tries": 3}
    tasks.run("an event of an earlier job", "performance.wait", event={"job": "other"}, **waiting)
    for what, event in {
        "took too long": {"overdue": "job x ran for 3 h: cancelled"},
        "its cluster is away": {"out_of_reach": "local is out of reach for 24 h"},
        "it is lost": {
            "status": JobStatus(state=JobState.UNKNOWN, reason="no trace").model_dump(mode="json")
        },
    }.items():
        tasks.run(what, "performance.wait", event={"job": second["job"], **event}, **waiting)
        if "away" in what:
            tasks.show_ledger()
            tasks.run("of a job that nobody waits for", "performance.parse", max_tries=3)
            tasks.run("of a job out of reach", "performance.end", max_tries=3)
            tasks.run("is cleared", "performance.wait", **waiting)
    tasks.run("a job still runs", "performance.end", max_tries=3)
    tasks.run("of a cancelled job", "performance.wait", **waiting)
    tasks.run("of a cancelled job", "performance.parse", max_tries=3)
    tasks.show_ledger()
    assert_kept("tasks/again.txt", tasks.told())


def test_a_run_that_succeeds_in_its_second_attempt(tasks, staged):
    interpreter = Path(str(staged.python))
    works = interpreter.read_text()
    interpreter.write_text("#!/bin/sh\necho 'srun: error: node1: task 0: Killed'\nexit 137\n")
    begun = submit(tasks, STAND_IN_STEP_S="0.001")
    tasks.wait("of its first job", submitted=begun["handle"])
    interpreter.write_text(works)
    given = {"run": begun["plan"]["runs"][0], "staged": begun["staged"]}
    second = tasks.run("is cleared", "performance.submit", max_tries=3, **given)
    tasks.wait("of its second job", submitted=second, max_tries=3)
    parsed = tasks.run("of its second job", "performance.parse", max_tries=3)
    checked = tasks.run("of its second job", "performance.validate", handle=parsed)
    tasks.run("of its second job", "performance.publish", handle=checked)
    tasks.run("of its second job", "report", plan=begun["plan"])
    tasks.show_ledger()
    assert_kept("tasks/second-attempt.txt", tasks.told())


def test_what_a_task_needs_is_missing(tasks):
    tasks.options["conf"] = {"gpus": "0"}
    tasks.run("of a run that cannot be", "check_params")
    tasks.run("nothing was planned", "stage", plan=None)
    tasks.run("nothing was planned", "performance_runs", returned=None)
    tasks.run("nothing was staged", "performance.submit", run="x", staged=None)
    tasks.run("before there is a job", "performance.wait", submitted=None)
    tasks.run("before there is a job", "performance.parse")
    tasks.run("before there is a job", "performance.end")
    tasks.run("nothing was read", "performance.validate", handle=None)
    tasks.run("nothing was checked", "performance.publish", handle=None)
    tasks.run("nothing was planned", "report", plan=None)
    assert_kept("tasks/missing.txt", tasks.told())


def test_a_checkpoint_that_is_saved_and_loaded(tasks, monkeypatch):
    async def busy(self, argv, *, timeout_s):
        return CommandResult(exit_code=1, stdout="", stderr=f"{argv[:3]} within {timeout_s} s: it is busy\n")

    tasks.options["conf"] = {"environment": {"STAND_IN_STEP_S": "0.001"}, "gpus": "1", "checkpoint": True}
    plan = tasks.run("of a pair besides", "check_params")
    staged = tasks.run("what it needs", "stage", plan=plan)
    (pair,) = plan["checkpoint_pairs"]
    tasks.run("before anything is saved", "checkpoint.load.submit", run=pair["load"], staged=staged)
    for mode in ("save", "load"):
        handle = tasks.run("begins", f"checkpoint.{mode}.submit", run=pair[mode], staged=staged)
        tasks.wait("of its job", f"checkpoint.{mode}", submitted=handle)
        parsed = tasks.run("of its job", f"checkpoint.{mode}.parse")
        checked = tasks.run("of its run", f"checkpoint.{mode}.validate", handle=parsed)
        with monkeypatch.context() as patched:
            patched.setattr(LocalCluster, "run", busy)
            tasks.run("the file system is busy", f"checkpoint.{mode}.publish", handle=checked)
    tasks.run("is cleared", "checkpoint.load.publish", handle=checked)
    tasks.run("of two runs of three", "report", plan=plan)
    assert_kept("tasks/checkpoint.txt", tasks.told())
