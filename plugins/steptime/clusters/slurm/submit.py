"""Submit one job to Slurm exactly once, and classify Slurm's refusals."""

import math
import posixpath
import re
from collections.abc import Sequence

from steptime.clusters.base import CommandResult, JobSpec
from steptime.clusters.slurm.job_records import SQUEUE_FORMAT
from steptime.errors import SubmitLimit, SystemFailure, UserError, one_line

_COMMAND_LIMIT_S = 60
"""Each of Slurm's commands is killed after this time."""
_COMMANDS = 5
"""A submission runs at most this many of Slurm's commands."""

_LOOK_UP_OR_SUBMIT = r"""
name=$1 format=$2 root=$3 folder=$4 directory=$5 limit=$6; shift 6
note=$folder/squeue id='' code=1
slurm() { timeout -s KILL "$limit" "$@"; }
queued() {
    of_name=$(slurm squeue --me --states=all --noheader --name="$name" --Format="$format") || return
    printf '%s\n' "$of_name" | grep -F -e "|$root/" | sort -t '|' -k 4,4n -k 1,1n || :
}
found=$(queued) || exit
if [ -z "$found" ]; then
    printed=$(slurm sbatch --hold "$@") || code=$?
    # Of all lines, as of a site's banner, the last with an id, or with an id and a cluster: `123;name`.
    id=$(printf '%s\n' "$printed" | sed -n 's/^\([0-9][0-9]*\)\(;.*\)\{0,1\}$/\1/p' | tail -n 1)
    found=$(queued) || exit
    if [ -z "$found" ]; then
        [ -n "$id" ] || exit "$code"
        found="$id|PENDING|0|$(date +%s)|N/A|N/A||$name|None|$directory|"
    fi
fi
found=$(printf '%s\n' "$found" | head -n 1)
first=${found%%|*}
if [ -n "$id" ] && [ "$id" != "$first" ]; then
    slurm scancel --name="$name" "$id" || :
fi
case $found in
    "$first|PENDING|"*)
        if [ ! -e "$note" ]; then
            slurm scontrol release "$first" || { echo "steptime-held:$first"; exit 1; }
        fi ;;
esac
printf '%s\n' "$found" >"$note.$$" && mv "$note.$$" "$note" && cat "$note"
"""
"""Looks a job up by its name and submits it if it is not there. Every value is an argument, never shell text.

No lock is needed, not even between login nodes, because the controller decides: a job is submitted held, and
only the first job of its name is released. A later one is cancelled before it can start. A submission that
ended before the release leaves a held job, which the next submission of that name releases.

sbatch may fail although the controller took the job, and a queue may lack a job whose id sbatch printed.
"""

_CANNOT_BE = (  # Slurm's words (slurm_errno.c) and those of sbatch about its own options
    "access/permission denied",
    "does not look like a batch script",
    "group not permitted to use this partition",
    "invalid account",
    "invalid constraint",
    "invalid feature specification",
    "invalid generic resource",
    "invalid license",
    "invalid node name",
    "invalid numeric value",
    "invalid partition",
    "invalid qos",
    "invalid --",
    "invalid wckey",
    "job dependency",
    "more processors requested than permitted",
    "node count specification invalid",
    "requested node configuration is not available",
    "requested reservation is invalid",
    "requested time limit is invalid",
    "requires an argument",
    "unrecognized option",
)


_SUBMIT_LIMIT = re.compile(r"SubmitJobs?(Limit|Per)")
"""Matches Slurm's limits on the number of queued jobs: QOSMaxSubmitJobPerUserLimit, AssocMaxSubmitJobLimit,
AssocGrpSubmitJobsLimit, QOSGrpSubmitJobsLimit and MaxSubmitJobsPerAccount. The sentence "Job violates
accounting/QOS policy" that follows is the same for limits on a job's size and time, so it cannot be used."""
_JOB_LIMIT = re.compile(r"\b(QOS|Assoc|Max)\w*(PerJob|PerNode|Min[A-Z])\w*")
"""Matches limits on one job's size or time, where waiting does not help: QOSMaxWallDurationPerJobLimit, …"""


def error_for_refused_job(
    job: str, cluster: str, done: CommandResult, *, extra_options: Sequence[str] = ()
) -> UserError | SystemFailure:
    """Return the error for a job that Slurm refused, with the message of sbatch.

    It is SubmitLimit if too many jobs are queued, UserError if Slurm can never run this one, else another
    SystemFailure. Only SystemFailure is possible once Slurm has taken the job. If the message names one of
    `extra_options`, which the job has from the cluster's file, the error says that it stands there.
    """
    lines = [
        line.strip().removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()
    ]
    message = one_line(
        "; ".join(line for line in lines if line) or f"exit code {done.exit_code}", at_most=500
    )
    if held := re.search(r"^steptime-held:(\d+)$", done.stdout, re.MULTILINE):
        return SystemFailure(
            f"Slurm on {cluster} took job {job} as {held[1]}, holds it, and refused to release it: "
            f"{message}. It is released when it is submitted again; try 'scontrol release {held[1]}'"
        )
    if _SUBMIT_LIMIT.search(message):
        return SubmitLimit(f"{cluster} accepts no more jobs for now, and refused {job}: {message}")
    if any(words in message.lower() for words in _CANNOT_BE) or _JOB_LIMIT.search(message):
        named = re.findall(r"--[a-z][a-z-]*", message)
        from_file = any(option.partition("=")[0] in named for option in extra_options)
        where = f" (extra_options in config/clusters/{cluster}.yaml)" if from_file else ""
        return UserError(f"{cluster} cannot run job {job}: {message}{where}")
    return SystemFailure(f"job {job} could not be submitted on {cluster}: {message}")


def submit_command(spec: JobSpec, *, root: str, folder: str) -> list[str]:
    """Return a command that submits a job, unless squeue shows a job of its name with a folder below `root`.

    It prints the job's line of squeue and stores it in `folder`. Simultaneous submissions, from any login
    nodes, start a single job.
    """
    values = [spec.name, SQUEUE_FORMAT, root, folder, spec.directory, str(_COMMAND_LIMIT_S)]
    return ["sh", "-c", _LOOK_UP_OR_SUBMIT, "sh", *values, *_options(spec)]


SUBMIT_TIMEOUT_S = _COMMANDS * _COMMAND_LIMIT_S + 60
"""Time limit of the command that `submit_command` returns."""


def _options(spec: JobSpec) -> list[str]:
    """Return sbatch's arguments: options that identify the job, and its script, which has the others."""
    return [
        *("--parsable", "--no-requeue", "--kill-on-invalid-dep=yes", "--export=ALL"),
        f"--job-name={spec.name}",
        f"--chdir={spec.directory}",
        # Slurm replaces %j and others in this path.
        f"--output={spec.log_path.replace('%', '%%')}",
        f"--time={math.ceil(spec.time_limit_s / 60)}",
        posixpath.join(spec.directory, "job.sh"),
    ]
