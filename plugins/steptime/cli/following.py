"""Follow a DAG run from the terminal: how many planned runs are done, or the state of each."""

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from steptime.cli.phases import Spinning
from steptime.cli.usage import complain
from steptime.errors import SystemFailure, UserError
from steptime.frozen import Frozen
from steptime.service.processes import running, why_not_running
from steptime.service.rest import AirflowClient, DagRun, LogLine, TaskInstance, check_address

POLL_S = 1.0
_TASKS_EVERY = 3
"""The tasks are requested at every third poll only: that costs Airflow twice as much CPU time as the request
for the DAG run's state, and the same CPU may be used for training."""
_PATIENCE_S = 120.0
"""How long to wait for an Airflow that does not answer: a restart takes half a minute."""

_WAITING = (None, "scheduled", "queued", "up_for_retry", "up_for_reschedule")
_NEVER_RUN = ("skipped", "upstream_failed", "removed")
FIRST_TASK = "submit"
"""The first task of each planned run, in its task group."""
_AT_WORK = ("running", "deferred", "awaiting_input", "restarting")
_PASSWORD = "STEPTIME_AIRFLOW_PASSWORD"  # noqa: S105 (the name of the variable)

Url = Annotated[
    str | None,
    typer.Option(envvar="STEPTIME_AIRFLOW_URL", help="Another Airflow than that of 'steptime up'."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the runs and print their results.")]
User = Annotated[
    str | None,
    typer.Option(envvar="STEPTIME_AIRFLOW_USER", help=f"User there; the password comes from {_PASSWORD}."),
]

DAG_PATIENCE_S = 60.0
"""How long to wait for the DAG of a known workload: a started Airflow reads its files one after the other."""


class RunLine(Frozen):
    """The state of a planned run, or of a task that is not mapped.

    The tasks of a planned run are those with one index of a mapped task group.
    """

    label: str
    state: str
    """`waiting`, `running`, `failed`, `success`, or `skipped` if the run is not needed."""
    task: TaskInstance
    """The task that decides the state: the failed, the running, the next or the last one."""
    began: float
    """When the first of its tasks started, in Unix time; infinity if none has."""


def run_lines(tasks: Iterable[TaskInstance]) -> list[RunLine]:
    """Return the state of each planned run and each unmapped task of a DAG run, unmapped tasks first.

    Tasks that never run are left out. A planned run is not needed if its first task was skipped.
    """
    rows: dict[tuple[str, int], list[TaskInstance]] = {}
    for task in tasks:
        group, _, name = task.task_id.rpartition(".")
        not_needed = task.map_index >= 0 and task.state == "skipped" and name == FIRST_TASK
        if task.state not in _NEVER_RUN or not_needed:
            rows.setdefault((group if task.map_index >= 0 else task.task_id, task.map_index), []).append(task)
    ordered = sorted(rows.items(), key=lambda row: row[0][1] >= 0)
    return [_line(group, index, members) for (group, index), members in ordered]


def _line(group: str, map_index: int, tasks: Sequence[TaskInstance]) -> RunLine:
    # Until a task is rendered, Airflow labels it with the number of the instance.
    labels = (task.rendered_map_index for task in tasks)
    named = next((label for label in labels if label and not label.isdecimal()), None)
    label = named or (f"{group} [{map_index}]" if map_index >= 0 else group)
    if skipped := next((task for task in tasks if task.state == "skipped"), None):
        return RunLine(label=label, state="skipped", task=skipped, began=_start(skipped))
    started = sorted((task for task in tasks if task.state not in _WAITING), key=_start)
    failed = [task for task in started if task.state == "failed"]
    at_work = [task for task in started if task.state in _AT_WORK]
    to_come = [task for task in tasks if task.state in _WAITING]
    if failed:
        state, task = "failed", failed[0]
    elif at_work or to_come:
        state, task = "running" if started else "waiting", [*at_work, *to_come][0]
    else:
        state, task = "success", started[-1]
    return RunLine(label=label, state=state, task=task, began=min(map(_start, tasks)))


def _start(task: TaskInstance) -> float:
    return task.start_date.timestamp() if task.start_date else float("inf")


LastWord = Callable[[RunLine], str]
"""A function that returns the last line that a run's task logged; empty if there is none."""


def follow(client: AirflowClient, run: DagRun, *, of: int) -> DagRun:
    """Show on stderr the progress of a DAG run with `of` planned runs; return it once it has ended.

    A terminal gets one line, which is redrawn; other output gets a line whenever another run is done. Raises
    SystemFailure if Airflow does not answer for two minutes, and on Ctrl-C; the runs then continue.
    """
    try:
        return _follow(client, run, of)
    except KeyboardInterrupt:
        address = client.run_address(run.dag_id, run.dag_run_id)
        raise SystemFailure(
            f"no longer following; the runs continue: see {address} (mark the DAG run as failed there "
            f"to end their jobs)"
        ) from None


def _follow(client: AirflowClient, run: DagRun, of: int) -> DagRun:
    last_heard = time.monotonic()
    with _View(of) as view:
        polls = itertools.count()
        while True:
            try:
                now = client.dag_run(run.dag_id, run.dag_run_id)
                if next(polls) % _TASKS_EVERY == 0 or now.has_ended:
                    lines = run_lines(client.task_instances(run.dag_id, run.dag_run_id))
                    view.update(lines, partial(_last_word, client, run))
                last_heard = time.monotonic()
            except SystemFailure:
                if time.monotonic() - last_heard > _PATIENCE_S:
                    raise
            else:
                if now.has_ended:
                    return now
            time.sleep(POLL_S)


def explain_failure(client: AirflowClient, dag_run: DagRun) -> None:
    """Print the first failed task of each failed run, with its error and the address of its log.

    Later tasks of the run, and `report`, fail only because of it.
    """
    lines = run_lines(client.task_instances(dag_run.dag_id, dag_run.dag_run_id))
    failed = [line.task for line in lines if line.state == "failed"]
    failed.sort(key=lambda task: task.end_date.timestamp() if task.end_date else math.inf)
    for number, task in enumerate(failed):
        if number and task.map_index < 0:
            continue
        log = client.log(dag_run.dag_id, dag_run.dag_run_id, task)
        address = client.task_address(dag_run.dag_id, dag_run.dag_run_id, task)
        complain(f"{task.label} failed: {_error(log)}\n    its log: {address}")


def _error(log: list[LogLine]) -> str:
    errors = [line.error for line in log if line.error]
    return errors[-1] if errors else "its log has no error"


def progress(lines: Sequence[RunLine], of: int, now: float, last_word: LastWord = lambda _line: "") -> str:
    """Describe the progress at a Unix time: `2 of 4 done · about 40 s left`, of the runs that are needed.

    Before the first run is done, it names the task or run at work and its last log line, which `last_word`
    returns. The time left is estimated from the runs that are done.
    """
    runs = [line for line in lines if line.task.map_index >= 0]
    done = sum(line.state == "success" for line in runs)
    of -= sum(line.state == "skipped" for line in runs)
    if failed := sum(line.state == "failed" for line in runs):
        return f"{done} of {of} done, {failed} failed"
    said = f"{done} of {of} done"
    began = min((line.began for line in runs), default=now)
    if done == of:
        return said
    if not done:
        at_work = next((line for line in (*runs, *reversed(lines)) if line.state == "running"), None)
        return said if at_work is None else f"{said} · {_with(at_work.label, last_word(at_work))}"
    return f"{said} · about {_about((now - began) / done * (of - done))} left"


def _about(seconds: float) -> str:
    """Format a rough duration: in tens of seconds, and from two minutes on in minutes."""
    return f"{max(10, round(seconds, -1)):.0f} s" if seconds < 115 else f"{seconds / 60:.0f} min"


def _last_word(client: AirflowClient, run: DagRun, line: RunLine) -> str:
    """Return the last line that steptime wrote to the task's log; empty if the task is not active."""
    if line.task.state not in ("running", "deferred"):
        return ""
    entries = [entry.event for entry in client.log(run.dag_id, run.dag_run_id, line.task) if entry.is_ours]
    return entries[-1].strip().partition("\n")[0] if entries else ""


def _with(*parts: str) -> str:
    return ": ".join(part for part in parts if part)


class _View(Spinning):
    """The progress display on stderr; see `follow`."""

    def __init__(self, of: int) -> None:
        super().__init__()
        self._of = of
        self._printed = ""

    def update(self, lines: Sequence[RunLine], last_word: LastWord) -> None:
        """Redraw the current state, or print what has changed since the last call."""
        if self._spinner is not None:
            said = progress(lines, self._of, time.time(), last_word)
            self._spinner.update(Text(said, no_wrap=True, overflow="ellipsis"))
            return
        # Until the first is done, what is at work has lines, too: to install the trainer takes minutes.
        text = progress(lines, self._of, time.time())
        ended = sum(line.task.map_index >= 0 and line.state in ("success", "failed") for line in lines)
        changed = str(ended or text)
        if self._printed != changed:
            self._printed = changed
            typer.echo(text, err=True)


def airflow_client(url: str | None, user: str | None) -> AirflowClient:
    """Return a client of the named Airflow, or of the one that `steptime up` started.

    The password comes from STEPTIME_AIRFLOW_PASSWORD or a prompt, never from the command line. Raises
    SystemFailure if no Airflow was named and none runs, and UserError if the user or the password is missing.
    """
    if url is None:
        service = running()
        if service is None:
            raise SystemFailure(f"{why_not_running()}, or name another Airflow with --url")
        return service.client()
    check_address(url)
    if user is None:
        raise UserError("--url needs a user: name one with --user or STEPTIME_AIRFLOW_USER")
    password = os.environ.get(_PASSWORD)
    if password is None and sys.stdin.isatty():
        password = typer.prompt(f"password of '{user}'", hide_input=True, err=True)
    if password is None:
        raise UserError(f"the password of '{user}' is missing: set {_PASSWORD}")
    return AirflowClient(url, user, password)
