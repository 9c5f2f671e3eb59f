"""Watching a DAG run from the terminal: a line for each planned run, or one line of how many are done."""

import time
from collections.abc import Iterable, Sequence
from typing import Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from steptime.cli.phases import Spinning
from steptime.errors import SystemFailure
from steptime.frozen import Frozen
from steptime.service.rest import AirflowClient, DagRun, TaskInstance

POLL_S = 1.0
_PATIENCE_S = 120.0
"""An Airflow that restarts is away for half a minute."""
_LOGS_AT_ONCE = 8
"""Logs read per poll: of the first runs that are at work, as reading hundreds would keep Airflow busy."""

_WAITING = (None, "scheduled", "queued", "up_for_retry", "up_for_reschedule")
_NEVER_RUN = ("skipped", "upstream_failed", "removed")
_AT_WORK = ("running", "deferred", "awaiting_input", "restarting")
_SYMBOLS = {"success": "[green]✓[/]", "failed": "[red]✗[/]", "running": "[cyan]●[/]", "waiting": "[dim]·[/]"}


class RunLine(Frozen):
    """What is shown of a planned run (the tasks of one mapped instance), or of a task that is not mapped."""

    label: str
    state: str
    """`waiting`, `running`, `failed` or `success`."""
    task: TaskInstance
    """The task that decides the state: the failed one, the one at work, the next or the last."""
    began: float
    """When the first of its tasks started, in Unix time; infinite if none has."""

    @property
    def doing(self) -> str:
        """The task that the run is at, with its state in Airflow unless that is `running`."""
        if self.state == "success":
            return "done"
        state = (self.task.state or "waiting").replace("_", " ")
        if self.task.map_index < 0:
            return state
        task = self.task.task_id.rpartition(".")[2]
        return task if self.task.state in ("running", None) else f"{task}: {state}"


def run_lines(tasks: Iterable[TaskInstance]) -> list[RunLine]:
    """The run_lines of a DAG run, those of single tasks first; tasks that are never to run have none."""
    rows: dict[tuple[str, int], list[TaskInstance]] = {}
    for task in tasks:
        if task.state not in _NEVER_RUN:
            group = task.task_id.rpartition(".")[0] if task.map_index >= 0 else task.task_id
            rows.setdefault((group, task.map_index), []).append(task)
    ordered = sorted(rows.items(), key=lambda row: row[0][1] >= 0)
    return [_line(group, index, members) for (group, index), members in ordered]


def _line(group: str, map_index: int, tasks: Sequence[TaskInstance]) -> RunLine:
    # Until a task is rendered, Airflow labels it with the number of the instance.
    labels = (task.rendered_map_index for task in tasks)
    named = next((label for label in labels if label and not label.isdecimal()), None)
    label = named or (f"{group} [{map_index}]" if map_index >= 0 else group)
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


def follow(client: AirflowClient, run: DagRun, *, counting: int | None = None) -> DagRun:
    """Show a DAG run on stderr until it has ended: live in a terminal, else a line for each change.

    With `counting`, the number of its planned runs, it is only told how many of these are done, and about how
    long the others take. An Airflow that does not answer for two minutes is SystemFailure.
    """
    last_heard = time.monotonic()
    with _view(counting) as view:
        while True:
            try:
                now = client.dag_run(run.dag_id, run.dag_run_id)
                found = run_lines(client.task_instances(run.dag_id, run.dag_run_id))
                view.update(found, {} if counting else _news(client, run, found))
                last_heard = time.monotonic()
            except SystemFailure:
                if time.monotonic() - last_heard > _PATIENCE_S:
                    raise
            else:
                if now.has_ended:
                    return now
            time.sleep(POLL_S)


def progress(found: Sequence[RunLine], of: int, now: float) -> str:
    """`2 of 4 done · about 40 s left`: how far so many planned runs are at a Unix time.

    Before one is done it names the task or the run that is at work; it goes by the time of those that are.
    """
    runs = [line for line in found if line.task.map_index >= 0]
    done = sum(line.state == "success" for line in runs)
    if failed := sum(line.state == "failed" for line in runs):
        return f"{done} of {of} done, {failed} failed"
    said = f"{done} of {of} done"
    began = min((line.began for line in runs), default=now)
    if done == of:
        return said
    if not done:
        at_work = next((line.label for line in reversed(found) if line.state == "running"), None)
        return said if at_work is None else f"{said} · {at_work}"
    return f"{said} · about {_about((now - began) / done * (of - done))} left"


def _about(seconds: float) -> str:
    """No more precise than a guess can be: in tens of seconds, from two minutes on in minutes."""
    return f"{max(10, round(seconds, -1)):.0f} s" if seconds < 115 else f"{seconds / 60:.0f} min"


def _news(client: AirflowClient, run: DagRun, found: Sequence[RunLine]) -> dict[str, str]:
    """By label, the last word that the task at work has logged: a state of the job, or a training step."""
    at_work = [line for line in found if line.task.state in ("running", "deferred")]
    news = {}
    for line in at_work[:_LOGS_AT_ONCE]:
        entries = [
            entry.event for entry in client.log(run.dag_id, run.dag_run_id, line.task) if entry.is_ours
        ]
        if entries:
            news[line.label] = entries[-1].strip().partition("\n")[0]
    return news


def _view(counting: int | None) -> "_LiveView | _PlainView | _CountingView":
    if counting is not None:
        return _CountingView(counting)
    console = Console(stderr=True)
    return _LiveView(console) if console.is_terminal else _PlainView()


class _CountingView(Spinning):
    """One line that is redrawn in a terminal, else a line whenever another run is done.

    Until the first is done, what is at work has lines, too: to install the trainer takes minutes.
    """

    def __init__(self, of: int) -> None:
        super().__init__()
        self._of, self._told = of, ""

    def update(self, found: Sequence[RunLine], _news: dict[str, str]) -> None:
        """Draw what is known now, or print it if it is more than before."""
        text = progress(found, self._of, time.time())
        ended = sum(line.task.map_index >= 0 and line.state in ("success", "failed") for line in found)
        if self._spinner is not None:
            self._spinner.update(Text(text))
        elif (told := str(ended or text)) != self._told:
            self._told = told
            typer.echo(text, err=True)


class _LiveView:
    """A table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def update(self, found: Sequence[RunLine], news: dict[str, str]) -> None:
        """Draw what is known now."""
        table = Table.grid(padding=(0, 2))
        for column in ("symbol", "label", "doing", "news"):
            table.add_column(column, no_wrap=True)
        for line in found:
            text = Text(news.get(line.label, ""), style="dim")
            table.add_row(_SYMBOLS[line.state], Text(line.label), line.doing, text)
        self._live.update(table, refresh=True)


class _PlainView:
    """A line of text whenever something has changed, for logs and pipes."""

    def __init__(self) -> None:
        self._printed: dict[str, str] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, found: Sequence[RunLine], news: dict[str, str]) -> None:
        """Print what has changed since the last time."""
        for line in found:
            text = ": ".join(part for part in (line.doing, news.get(line.label)) if part)
            if line.state == "waiting" or self._printed.get(line.label) == text:
                continue
            self._printed[line.label] = text
            typer.echo(f"{time.monotonic() - self._started:5.0f} s  {line.label}: {text}", err=True)
