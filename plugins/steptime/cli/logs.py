"""`steptime parse`: what training logs say, one row a run."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli.output import FORMAT_OPTION, Format, show
from steptime.errors import shown
from steptime.logs.files import find_logs, group_attempts, short_names
from steptime.recipes.notation import parse_window
from steptime.results.log_rows import COLUMNS, log_row

EXAMPLES = """
[bold]Examples[/bold]

steptime parse .steptime/experiments

steptime parse log-pretrain_llama3.1_8b_bf16_8.out --window 35:44

steptime parse results/ more-results/ --format csv > step_times.csv

[bold]Exit codes[/bold]

0 the logs were read, whatever they say of their runs; 1 there is no such log, or the window cannot be.
"""

_SHOW_PROGRESS_FROM_BYTES = 100_000_000

_HEADINGS = {
    "step_time_mean_s": "mean, s",
    "step_time_median_s": "median, s",
    "step_time_std_s": "std (n-1), s",
    "wall_time_median_s": "wall median, s",
    "tokens_per_s": "tokens/s",
    "mfu_percent": "MFU, %",
    "tflops_per_gpu_logged": "TFLOPS/GPU logged",
    "checkpoint_save_s": "save, s",
    "checkpoint_blocked_s": "save blocked, s",
    "checkpoint_load_s": "load, s",
}


def register(app: typer.Typer) -> None:
    """Add `steptime parse`."""
    app.command(epilog=EXAMPLES)(parse)


def parse(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Logs, or folders with logs (log*.out).")
    ],
    *,
    window: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Global steps to average, both included. Default: the window of the run.json beside "
            "the log; without one the last step, as in the recipe documents up to 25.04.",
            show_default=False,
        ),
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    full_names: Annotated[bool, typer.Option("--full-names", help="Whole paths in the table.")] = False,
) -> None:
    """Read training logs and show their step times, one row a run, failed and short ones with the reason.

    NeMo 2, its older progress bar (24.11), Megatron-Bridge and torchtitan are understood, also in `.gz`.
    The logs of a requeued job (`…_0.out`, `…_1.out`) are one run. A save has two times: `save` until it was
    whole on disk, `save blocked` how long training waited for it.
    """
    given = None if window is None else parse_window(window)
    runs = group_attempts(log for path in paths for log in find_logs(path))
    with _progress(sum(log.stat().st_size for run in runs for log in run)) as on_bytes:
        rows = [log_row(run, given, on_bytes=on_bytes) for run in runs]
    if output_format is Format.TABLE:
        paths_there = [str(row["log_path"]) for row in rows]
        _print_table(rows, paths_there if full_names else short_names([Path(path) for path in paths_there]))
    else:
        show(rows, output_format, columns=COLUMNS)


def _print_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    lines = [
        {"log": name, "state": row["state"], "steps": row["steps"], "window": _window(row)}
        | {column: row[column] for column in _HEADINGS}
        for name, row in zip(names, rows, strict=True)
    ]
    used = [column for column in lines[0] if any(line[column] is not None for line in lines)]
    show(lines, Format.TABLE, columns=used, headings=_HEADINGS)
    for name, row in zip(names, rows, strict=True):
        heading = shown(name, at_most=None)
        for what in ("reason", "warnings"):
            if row[what]:
                typer.echo(f"{heading}: {row['state'] if what == 'reason' else 'note'}: {row[what]}")


def _window(row: Mapping[str, Any]) -> str | None:
    return None if row["window"] is None else f"{row['window']} ({row['window_from']})"


@contextmanager
def _progress(total_bytes: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr where reading takes long enough to wonder, and somebody watches."""
    if total_bytes < _SHOW_PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total_bytes)
        yield lambda count: bar.advance(task, count)
