"""`steptime parse`: read training logs, and print one row per run."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, show_columns, show_table
from steptime.errors import UserError, one_line
from steptime.logs.finding import RunLogs, find_logs, group_by_run
from steptime.measure.log_rows import COLUMNS, log_row
from steptime.recipes.models import Mode, Window
from steptime.recipes.notation import parse_window
from steptime.recipes.step_lines import parse_step_line
from steptime.wording import counted

EXAMPLES = """
[bold]Examples[/bold]

steptime parse .steptime/experiments

steptime parse log-pretrain_llama3.1_8b_bf16_8.out --window 35:44

steptime parse results/ more-results/ --format csv > step_times.csv

steptime parse nanogpt.log --step-line 'iter {step}: loss {loss}, time {ms}ms'

[bold]Exit codes[/bold]

0 the logs were read, also if their runs failed; 1 there is no such log, or the window is impossible.
"""

_DEFAULT_FOLDER = "experiments"
_PROCESSES_FROM_BYTES = 10_000_000


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def parse(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH...]",
            help="Logs, or folders with logs. Default: the folder experiments, as NVIDIA's scripts make it.",
            show_default=False,
        ),
    ] = None,
    *,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Global steps to average, both included. Default: the window of the run.json beside "
            "the log, or of the release that llmb-config_*.yaml or the experiment's name shows; else only "
            "the last step, as NVIDIA's recipes up to 25.04 measure.",
            show_default=False,
        ),
    ] = None,
    step_line: Annotated[
        str | None,
        typer.Option(
            metavar="FORM",
            help="How the program prints a step, if it is none of the known formats: 'iter {step}: loss "
            "{loss}, time {ms}ms'. Default: `step_line` of the workload, in the run.json beside the log.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    full_names: Annotated[bool, typer.Option("--full-names", help="Whole paths in the table.")] = False,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Read training logs and show one row per run: its step time, or why there is none.

    docs/reference/logs.md lists the formats; files may be packed as `.gz` and `.zst`. In a
    folder, all `log*.out` are read; if there is none, all `*.out`; if there is none, `*.log`, `*.txt`, `*.o`,
    `*.err` and `*.e` with training steps. The logs of a requeued job (`…_0.out`, `…_1.out`) are one run, and
    so are those of several nodes (`%n`) and ranks, and the error output (`.err`) beside a log. Checkpoint
    runs, profiles and traces have tables of their own. A checkpoint save has two times: `save`, until the
    checkpoint was complete on disk, and `save blocked`, for how long training waited for it.
    """
    given = None if window is None else parse_window(window)
    if step_line is not None:
        _check_step_line(step_line)
    logs = [log for path in paths or [_DEFAULT_FOLDER] for log in find_logs(path, step_line)]
    runs = group_by_run(logs, step_line)
    rows = _rows(runs, given, step_line)
    if output_format is Format.TABLE:
        paths_there = [str(row["log_path"]) for row in rows]
        names = paths_there if full_names else short_names([Path(path) for path in paths_there])
        _print_table(rows, names, wide=wide)
    else:
        show_columns(rows, COLUMNS, output_format, called="logs")


def _check_step_line(step_line: str) -> None:
    try:
        parse_step_line(step_line)
    except ValueError as error:
        raise UserError(f"--step-line {error}: '{step_line}'") from None


def _rows(runs: Sequence[RunLogs], window: Window | None, step_line: str | None) -> list[dict[str, Any]]:
    """Return a row for each run; large logs are read in parallel."""
    sizes = [sum(log.stat().st_size for log in (*run.attempts, *run.other_outputs)) for run in runs]
    processes = min(len(runs), len(os.sched_getaffinity(0)))
    if processes < 2 or sum(sizes) < _PROCESSES_FROM_BYTES:
        return [_row(run, window, step_line) for run in runs]
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        read = [pool.submit(_row, run, window, step_line) for run in runs]
        return [row.result() for row in read]


def _row(run: RunLogs, window: Window | None, step_line: str | None) -> dict[str, Any]:
    return log_row(
        run.attempts,
        window,
        step_line=step_line,
        other_outputs=run.other_outputs,
        left_out=run.left_out,
    )


def _print_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, wide: bool) -> None:
    typer.echo(_in_words(rows))
    lines = [
        {**row, "log_path": name, "window": row["window"] and f"{row['window']} ({row['window_from']})"}
        for name, row in zip(names, rows, strict=True)
    ]
    for mode in Mode:  # a log without a step shows no kind
        if alike := [line for line in lines if (line["mode"] or Mode.PERFORMANCE) == mode]:
            used = [
                column
                for column in COLUMNS
                if column.priority is not None and any(line[column.name] is not None for line in alike)
            ]
            other = f"{mode.replace('_', ' ')}: not for comparison with performance runs"
            show_table(alike, used, title=None if mode is Mode.PERFORMANCE else other, wide=wide)
    for name, row in zip(names, rows, strict=True):
        heading = one_line(name, at_most=None)
        for what in ("reason", "warnings"):
            if row[what]:
                typer.echo(f"{heading}: {row['state'] if what == 'reason' else 'note'}: {row[what]}")


def _in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Describe how many runs the logs contain, and how they ended."""
    states = Counter(row["state"] for row in rows)
    ended = ", ".join(
        f"{states[state]} {state}"
        for state in ("complete", "incomplete", "failed", "unknown")
        if states[state]
    )
    return f"{counted(len(rows), 'run')}: {ended}."


def short_names(logs: Sequence[Path]) -> list[str]:
    """Return a unique readable name for each log: its experiment, with as much of its path as needed.

    Of folders whose names only repeat the experiment's, as NeMo and steptime make them, the longest counts.
    Logs are named `log-<experiment>.out`; logs that Slurm wrote are named
    `log-<account>.<experiment>_<jobid>_<restarts>.out`.
    """
    names = [_experiment(log) for log in logs]
    folders = [list(log.parts[:-1]) for log in logs]
    while any(folders[index] for index in _doubled(names)):
        for index in _doubled(names):
            if folders[index]:
                folder, (first, slash, rest) = folders[index].pop(), names[index].partition("/")
                repeated = folder.startswith(first)
                names[index] = f"{folder}{slash}{rest}" if repeated else f"{folder}/{names[index]}"
    for index in _doubled(names):
        names[index] = str(logs[index])
    return names


def _experiment(log: Path) -> str:
    name = re.sub(r"\.(?:out|log|txt)(?:\.gz|\.zst)?$", "", log.name)
    # A period also stands in a version, as in llama3.1; an account's is followed by a name.
    return re.sub(r"^log[-_](?:[^.]+\.(?=[A-Za-z]))?", "", name) or log.name


def _doubled(names: Sequence[str]) -> list[int]:
    counts = Counter(names)
    return [index for index, name in enumerate(names) if counts[name] > 1]
