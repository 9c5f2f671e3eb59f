"""Find the training logs below a folder, and group them by run."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from steptime.errors import UserError
from steptime.logs.reader import glance, has_steps, read_log

_REQUEUED = re.compile(r"(?P<job>.*_\d+)_(?P<restart>\d{1,3})\.out(?:\.gz|\.zst)?")


_PACKED = ("", ".gz", ".zst")
_OUTPUT, _ERRORS = "(?:std)?out(?:put)?", "(?:std)?err(?:or)?"
_STREAMS = (
    (r"\.(?:out|log|txt)$", (".err", ".error", ".stderr")),
    (r"\.(?:err|error|stderr)$", (".out", ".log", ".txt")),
    (r"\.o(\d*)$", (r".e\1",)),
    (r"\.e(\d*)$", (r".o\1",)),
    (rf"(^|[._-]){_OUTPUT}([._-].*)$", (r"\1err\2", r"\1error\2", r"\1stderr\2")),
    (rf"(^|[._-]){_ERRORS}([._-].*)$", (r"\1out\2", r"\1output\2", r"\1stdout\2")),
)
"""Forms of names of a job's output or error output, and the names of the other one that sites use."""
_OF_A_RANK = re.compile(r"(?i)rank|nemo_error|(?:^|[._-])(?:std)?err(?:or)?(?:[._-]|$)")
"""Names of files beside a log that are outputs of the same run."""
_OUTPUT_SUFFIXES = {".out", ".log", ".txt", ".err", ".error", ".o", ".e"}
_MOST_LEFT_OUT = 6


class RunLogs(NamedTuple):
    """The logs of one run."""

    attempts: tuple[Path, ...]
    """The logs of a requeued job in order, or the single log."""
    other_outputs: tuple[Path, ...] = ()
    """Outputs of which only failures are read: of the run's other nodes and ranks, and its error output."""
    left_out: tuple[Path, ...] = ()
    """Files beside the log that may be outputs of the run, and are not read."""


def find_logs(path: str | Path, step_line: str | None = None) -> list[Path]:
    """Return the log at `path`, or all logs below the folder `path`, sorted.

    Slurm names them `log-*.out`, Run:ai `log_*.out`. If there are none, all `*.out` are taken; if there are
    none of these, all `*.log`, `*.txt`, `*.o`, `*.err` and `*.e` with a training step. Raises UserError if
    there is nothing at `path`, or no log below it. `step_line` is the form of their steps, if it is none of
    the known formats.
    """
    root = Path(path)
    try:
        if not str(path) or not root.exists():
            raise UserError(f"no log or folder at '{path}': check the path")
        is_folder = root.is_dir()
    except OSError as error:
        raise UserError(f"no log can be read at '{path}': {error.strerror}") from None
    if not is_folder:
        return [root]
    logs = _below(root, "log*.out") or _below(root, "*.out")
    names = ("*.log", "*.txt", "*.o", "*.err", "*.e")
    logs = logs or [log for log in _below(root, *names) if has_steps(log, step_line)]
    if not logs:
        raise UserError(
            f"no training log below the folder '{path}': it needs a *.out, or a *.log or *.txt with a "
            "training step. If the program has its own form of step lines, name it: with --step-line for "
            "`parse`, with --workload for `results import`"
        )
    return logs


def _below(folder: Path, *patterns: str) -> list[Path]:
    """Return the files below a folder with these names, compressed ones included."""
    names = [pattern + packed for pattern in patterns for packed in _PACKED]
    return sorted({log for name in names for log in folder.rglob(name) if log.is_file()})


def group_by_run(logs: Iterable[Path], step_line: str | None = None) -> list[RunLogs]:
    """Group logs by run: a requeued job has several, as may a run on several nodes.

    Slurm names the logs of a requeued job `…_<jobid>_0.out`, `…_<jobid>_1.out` and so on, counted from 0;
    other numbers at the end of a name are job ids. Logs of several nodes (`_%n`) have the same form and are
    told apart by their content: the first one with a step is the run's, the others are `other_outputs`. So
    are a job's error output beside a log, and the logs of torchrun's other ranks. Raises UserError if such a
    log cannot be read. `step_line` is the form of their steps, if it is none of the known formats.
    """
    unique = list(dict.fromkeys(logs))
    jobs: dict[Path, dict[int, Path]] = defaultdict(dict)
    for log in unique:
        if match := _REQUEUED.fullmatch(log.name):
            jobs[log.with_name(match["job"])][int(match["restart"])] = log
    run_of: dict[Path, RunLogs] = {}
    for numbered in jobs.values():
        if 0 in numbered and len(numbered) > 1:
            attempts = tuple(log for _, log in sorted(numbered.items()))
            run_of |= dict.fromkeys(
                attempts,
                _split_by_node(attempts, step_line)
                if _are_of_nodes(attempts, step_line)
                else RunLogs(attempts),
            )
    of_attempts = {stream: run for log, run in run_of.items() for stream in _streams(log)}
    run_of |= {stream: run for stream, run in of_attempts.items() if stream not in run_of}
    for log in unique:
        if log not in run_of:
            run = _with_streams(log, step_line)
            run_of |= dict.fromkeys((log, *run.other_outputs), run)
    runs = list(dict.fromkeys(run_of[log] for log in unique))
    folders = Counter(run.attempts[-1].parent for run in runs)
    return [_with_neighbours(run, is_alone=folders[run.attempts[-1].parent] == 1) for run in runs]


def _with_streams(log: Path, step_line: str | None) -> RunLogs:
    """Return the run of a log that is output or error output of a job, or the output of a rank."""
    if log.name in ("stdout.log", "stderr.log") and log.parent.name.isdigit():  # torchrun --log-dir
        files = sorted(
            log.parent.parent.glob("*/std*.log"), key=lambda file: (int(file.parent.name), file.name)
        )
    else:
        files = [log, *_streams(log)]
    return RunLogs((log,)) if len(files) < 2 else _split_by_node(tuple(files), step_line)


def _streams(log: Path) -> list[Path]:
    """Return the files beside a log that are the error output of the same job, or its output."""
    name = _without_packing(log.name)
    names = {re.sub(form, new, name, count=1) for form, others in _STREAMS for new in others} - {name}
    files = (log.with_name(other + packed) for other in sorted(names) for packed in _PACKED)
    return [file for file in files if file.is_file()]


def _without_packing(name: str) -> str:
    return re.sub(r"\.(?:gz|zst)$", "", name)


def _with_neighbours(run: RunLogs, *, is_alone: bool) -> RunLogs:
    """Add the error output beside a run's last log.

    If the run is alone in its folder, also add files there that are outputs of a run by their name, and name
    those that may be.
    """
    last = run.attempts[-1]
    known = {*run.attempts, *run.other_outputs}
    others = [*run.other_outputs, *(file for file in _streams(last) if file not in known)]
    run = run._replace(other_outputs=tuple(others))
    if not (is_alone and last.parent.is_dir()):
        return run
    known.update(others)
    beside = [file for file in sorted(last.parent.iterdir()) if file not in known and _is_output(file)]
    if len(beside) > _MOST_LEFT_OUT:  # a folder of other things, too
        return run
    others += [file for file in beside if _OF_A_RANK.search(file.name)]
    # Another file of the same kind is rather the log of another run.
    left_out = tuple(file for file in beside if file not in others and file.suffix != last.suffix)
    return run._replace(other_outputs=tuple(others), left_out=left_out)


def _is_output(file: Path) -> bool:
    return Path(_without_packing(file.name)).suffix in _OUTPUT_SUFFIXES and file.is_file()


def _split_by_node(logs: tuple[Path, ...], step_line: str | None) -> RunLogs:
    main = next((log for log in logs if has_steps(log, step_line)), logs[0])
    return RunLogs((main,), tuple(log for log in logs if log != main))


def _are_of_nodes(logs: Sequence[Path], step_line: str | None) -> bool:
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
        log = read_log(earlier, step_line=step_line)
        if log.steps and not any(problem.fatal for problem in log.problems):
            return True
    return False
