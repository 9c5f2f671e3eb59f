"""`steptime clean`: remove what this machine keeps of jobs that ended long ago.

A job's notes reserve its name: without them another job could get it, and with it the folder, the log and the
record of the first. So notes are removed only after the job's folder. Only `ended.json` shows that it ended.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, NamedTuple

import typer

from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, show
from steptime.cli.selecting import age_s
from steptime.clusters.config import load_clusters
from steptime.clusters.local.cluster import LocalConfig
from steptime.clusters.local.state import Ended, JobFolder, LocalJob, lock_if_free, locked, open_lock
from steptime.errors import UserError, shown
from steptime.settings import collected_logs_dir

EXAMPLES = """
[bold]Examples[/bold]

steptime clean --dry-run

steptime clean --older-than 12w
"""

_AT_LEAST_S = 86_400
"""Airflow may still wait for a job that ended only just now."""


app = typer.Typer()
_REMOVED = "removed"
"""A folder beside the jobs': what is being removed has a name there that nobody looks for."""


@app.command(epilog=EXAMPLES)
def clean(
    *,
    older_than: Annotated[
        str, typer.Option(help="Age of the jobs to remove, since their end: 1d or more, such as 30d or 12w.")
    ] = "30d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Remove what this machine keeps of jobs long ended: copies of other clusters' logs, notes of local jobs.

    Notes go once the job's folder is gone: delete old folders below experiments/ first. Whatever a live job
    uses stays, and so do results, experiments with their logs, and what is staged.
    """
    from steptime.cli.clean import Old, prune
    from steptime.clusters.config import load_clusters
    from steptime.recipes.config_files import refuse

    age = age_s(older_than)
    if age is None:
        raise UserError(f"--older-than '{shown(older_than)}' is not an age: write 30d or 12w.")
    if age < _AT_LEAST_S:
        raise UserError(f"--older-than '{shown(older_than)}' is too short: write 1d or more.")
    found = prune(before=time.time() - age, dry_run=dry_run)
    show(
        [old._asdict() | {"last_used": _day(old)} for old in found],
        output_format,
        called="removed",
        columns=Old._fields,
        wide=wide,
    )
    done = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(found)} {done}, {sum(old.size_bytes for old in found) / 1e6:,.1f} MB", err=True)
    refuse(load_clusters()[1])  # whose jobs' notes nobody could look for


def _day(old: "Old") -> str:
    return f"{datetime.fromtimestamp(old.last_used).astimezone():%Y-%m-%d}"


class Old(NamedTuple):
    """Something that can be removed."""

    what: str
    name: str
    """The job's."""
    last_used: float
    """Unix time, seconds."""
    size_bytes: int
    path: str


def prune(*, before: float, dry_run: bool) -> list[Old]:
    """Remove what was last used before a Unix time (only list it with `dry_run`); return the list.

    Jobs of a cluster whose file is broken stay.
    """
    found: list[Old] = []
    for config in load_clusters()[0]:
        if isinstance(config, LocalConfig):
            found += _old_jobs(Path(config.root, "clusters", config.name), before, dry_run=dry_run)
    return [*found, *_old_copies(collected_logs_dir(), before, dry_run=dry_run)]


def _old_jobs(state: Path, before: float, *, dry_run: bool) -> Iterator[Old]:
    jobs = state / "jobs"
    if not dry_run and (state / _REMOVED).is_dir():
        with locked(state / "submit.lock"):
            shutil.rmtree(state / _REMOVED)  # what an interrupted run has left
    for path in sorted(jobs.iterdir()) if jobs.is_dir() else ():
        job = JobFolder(state, path.name)
        submitted, ended = job.read(LocalJob), job.read(Ended)
        if submitted is None or ended is None or ended.ended_at >= before or job.runner_lives():
            continue
        if Path(submitted.directory).exists():
            continue
        old = Old("local job", job.name, ended.ended_at, _size(path), str(path))
        if dry_run or _take_away(state, job):
            yield old


def _take_away(state: Path, job: JobFolder) -> bool:
    """Remove a job's folder, renaming it first as others may read it, unless its runner is alive."""
    with locked(state / "submit.lock"):
        lock = open_lock(job.runner_lock)
        try:
            if not lock_if_free(lock):
                return False
            away = state / _REMOVED / job.name
            away.parent.mkdir(exist_ok=True)
            job.path.rename(away)
            shutil.rmtree(away.parent)
        finally:
            os.close(lock)
    return True


def _old_copies(folder: Path, before: float, *, dry_run: bool) -> Iterator[Old]:
    from filelock import FileLock, Timeout

    for path in sorted(folder.glob("*/*")):
        used = max((stat.st_mtime for stat in _stats(path.iterdir())), default=None)
        if used is None or used >= before:
            continue
        old = Old("copy of a log", path.name, used, _size(path), str(path))
        if not dry_run:
            try:
                with FileLock(path / ".lock", blocking=False):  # held while a log is copied
                    shutil.rmtree(path)
            except Timeout:
                continue
        yield old


def _size(folder: Path) -> int:
    return sum(stat.st_size for stat in _stats(folder.rglob("*")))


def _stats(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    """Yield the stat results of the paths that still exist; a copy in progress is renamed at its end."""
    for path in paths:
        with suppress(FileNotFoundError):
            stat = path.stat()
            if S_ISREG(stat.st_mode):
                yield stat
