"""Watching a DAG run from the terminal: one line for each planned run, with what it does at the moment."""

import time
from collections.abc import Iterable, Sequence
from typing import Self

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

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
        return RunLine(label=label, state="failed", task=failed[0])
    if at_work or to_come:
        return RunLine(label=label, state="running" if started else "waiting", task=[*at_work, *to_come][0])
    return RunLine(label=label, state="success", task=started[-1])


def _start(task: TaskInstance) -> float:
    return task.start_date.timestamp() if task.start_date else float("inf")


def follow(client: AirflowClient, run: DagRun) -> DagRun:
    """Show a DAG run on stderr until it has ended: live in a terminal, else a line for each change.

    An Airflow that does not answer for two minutes is SystemFailure.
    """
    console = Console(stderr=True)
    last_heard = time.monotonic()
    with _LiveView(console) if console.is_terminal else _PlainView() as view:
        while True:
            try:
                now = client.dag_run(run.dag_id, run.dag_run_id)
                found = run_lines(client.task_instances(run.dag_id, run.dag_run_id))
                view.update(found, _news(client, run, found))
                last_heard = time.monotonic()
            except SystemFailure:
                if time.monotonic() - last_heard > _PATIENCE_S:
                    raise
            else:
                if now.has_ended:
                    return now
            time.sleep(POLL_S)


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
