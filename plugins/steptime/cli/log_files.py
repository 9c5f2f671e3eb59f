"""Which files are training logs, and which of them belong to one run."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from steptime.errors import UserError

_LOG_NAMES = ("log*.out", "log*.out.gz", "log*.out.zst")
_REQUEUED = re.compile(r"(?P<job>.*_\d+)_(?P<restart>\d{1,3})\.out(?:\.gz|\.zst)?")


def find_logs(path: str | Path) -> list[Path]:
    """Return the log at `path`, or all below the folder `path`, sorted.

    They are named `log-*.out` by Slurm and `log_*.out` by Run:ai. Raises UserError if there is nothing at
    `path`, or no log below it.
    """
    place = Path(path)
    try:
        if not str(path) or not place.exists():
            raise UserError(f"no log or folder at '{path}'")
        is_folder = place.is_dir()
    except OSError as error:
        raise UserError(f"no log can be read at '{path}': {error.strerror}") from None
    if is_folder:
        found = sorted({log for name in _LOG_NAMES for log in place.rglob(name) if log.is_file()})
        if not found:
            raise UserError(f"no training log (log*.out) below the folder '{path}'")
        return found
    return [place]


def group_attempts(logs: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Group logs by run: a requeued job of Slurm has several, `…_<jobid>_0.out`, `…_<jobid>_1.out` and so on.

    The count of a requeued job begins at 0. Names without that are single, so that two jobs whose names end
    in their ids (`…_<gpus>_<jobid>.out` of the 24.11 recipe) are never taken for one.
    """
    unique = list(dict.fromkeys(logs))
    jobs: dict[Path, dict[int, Path]] = defaultdict(dict)
    for log in unique:
        if match := _REQUEUED.fullmatch(log.name):
            jobs[log.with_name(match["job"])][int(match["restart"])] = log
    requeued = [
        tuple(log for _, log in sorted(attempts.items())) for attempts in jobs.values() if 0 in attempts
    ]
    run_of = {log: run for run in requeued for log in run}
    return list(dict.fromkeys(run_of.get(log, (log,)) for log in unique))


def short_names(logs: Sequence[Path]) -> list[str]:
    """Return a readable name for each log: the experiment's, with as much of the path as makes it unique.

    Logs are named `log-<experiment>.out`, with an account before and a job's id behind if Slurm wrote
    them: `log-<account>.<experiment>_<jobid>_<restarts>.out`.
    """
    names = [_experiment(log) for log in logs]
    folders = [list(log.parts[:-1]) for log in logs]
    while any(folders[index] for index in _doubled(names)):
        for index in _doubled(names):
            if folders[index]:
                names[index] = f"{folders[index].pop()}/{names[index]}"
    return names


def _experiment(log: Path) -> str:
    name = re.sub(r"^log[-_]|\.out(?:\.gz|\.zst)?$", "", log.name)
    # A period also stands in a version, as in llama3.1; an account's is followed by a name.
    return re.sub(r"^[^.]+\.(?=[A-Za-z])", "", name) or log.name


def _doubled(names: Sequence[str]) -> list[int]:
    counts = Counter(names)
    return [index for index, name in enumerate(names) if counts[name] > 1]
