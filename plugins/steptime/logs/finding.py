"""Find the training logs below a folder, and group them by run."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from steptime.errors import UserError
from steptime.logs.reader import glance, has_steps, read_log

_REQUEUED = re.compile(r"(?P<job>.*_\d+)_(?P<restart>\d{1,3})\.out(?:\.gz|\.zst)?")


class RunLogs(NamedTuple):
    """The logs of one run."""

    attempts: tuple[Path, ...]
    """The logs of a requeued job in order, or the single log."""
    other_nodes: tuple[Path, ...] = ()
    """Logs of the run's other nodes, whose steps are not read."""


def find_logs(path: str | Path) -> list[Path]:
    """Return the log at `path`, or all logs below the folder `path`, sorted.

    Slurm names them `log-*.out`, Run:ai `log_*.out`. If there are none, all `*.out` are taken; if there are
    none of these, all `*.log` and `*.txt` with a training step. Raises UserError if there is nothing at
    `path`, or no log below it.
    """
    place = Path(path)
    try:
        if not str(path) or not place.exists():
            raise UserError(f"no log or folder at '{path}': check the path")
        is_folder = place.is_dir()
    except OSError as error:
        raise UserError(f"no log can be read at '{path}': {error.strerror}") from None
    if not is_folder:
        return [place]
    found = _below(place, "log*.out") or _below(place, "*.out")
    found = found or [log for log in _below(place, "*.log", "*.txt") if has_steps(log)]
    if not found:
        raise UserError(
            f"no training log below the folder '{path}': it needs a *.out, or a *.log or *.txt with a "
            "training step"
        )
    return found


def _below(folder: Path, *patterns: str) -> list[Path]:
    """Return the files below a folder with these names, compressed ones included."""
    names = [pattern + packed for pattern in patterns for packed in ("", ".gz", ".zst")]
    return sorted({log for name in names for log in folder.rglob(name) if log.is_file()})


def group_by_run(logs: Iterable[Path]) -> list[RunLogs]:
    """Group logs by run: a requeued job has several, as may a run on several nodes.

    Slurm names the logs of a requeued job `…_<jobid>_0.out`, `…_<jobid>_1.out` and so on, counted from 0;
    other numbers at the end of a name are job ids. Logs of several nodes (`_%n`) have the same form and are
    told apart by their content: the first one with a step is the run's, the others are `other_nodes`. Raises
    UserError if such a log cannot be read.
    """
    unique = list(dict.fromkeys(logs))
    jobs: dict[Path, dict[int, Path]] = defaultdict(dict)
    for log in unique:
        if match := _REQUEUED.fullmatch(log.name):
            jobs[log.with_name(match["job"])][int(match["restart"])] = log
    run_of: dict[Path, RunLogs] = {}
    for numbered in jobs.values():
        if 0 in numbered:
            some = tuple(log for _, log in sorted(numbered.items()))
            run_of |= dict.fromkeys(some, _split_by_node(some) if _are_of_nodes(some) else RunLogs(some))
    return list(dict.fromkeys(run_of.get(log, RunLogs((log,))) for log in unique))


def _split_by_node(logs: tuple[Path, ...]) -> RunLogs:
    main = next(filter(has_steps, logs), logs[0])
    return RunLogs((main,), tuple(log for log in logs if log != main))


def _are_of_nodes(logs: Sequence[Path]) -> bool:
    """Return whether different nodes wrote the logs, rather than one job that was requeued.

    They did if two successive logs share no rank or overlap in time, or if a log before the last is
    complete.
    """
    for earlier, later in pairwise(logs):
        before, after = glance(earlier), glance(later)
        if before.ranks and after.ranks and before.ranks.isdisjoint(after.ranks):
            return True
        # Most of them: a log may begin with the date of something else.
        if before.dates and after.dates and after.dates[len(after.dates) // 2] < before.dates[-1]:
            return True
        log = read_log(earlier)
        if log.steps and not any(problem.fatal for problem in log.problems):
            return True
    return False
