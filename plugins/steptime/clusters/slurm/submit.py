"""Submitting one job to Slurm: the command on the login node, and whose turn it is when it fails."""

import math
import posixpath

from steptime.clusters.base import Completed, JobSpec
from steptime.clusters.slurm.states import SQUEUE_FORMAT, TIME_FORMAT
from steptime.errors import SystemFailure, UserError, shown

_LOCK_TIMEOUT_S = 60
_COMMAND_LIMIT_S = 60
"""After which squeue and sbatch are ended: a job that is then not in the queue will not come into it."""

_LOOK_UP_OR_SUBMIT = r"""
name=$1 format=$2 root=$3 note=$4 limit=$5 patience=$6; shift 6
claim=$note.claim node=$(uname -n)
mine="$node $$ $(date +%s)"
queued() {
    of_name=$(timeout -s KILL "$limit" \
        squeue --local --me --states=all --noheader --name="$name" --Format="$format") || return
    printf '%s\n' "$of_name" | grep -F -e "|$root/" || :
}
take_away() {
    mv "$claim" "$claim.of-$$" 2>/dev/null || return 0
    [ "$(cat "$claim.of-$$")" = "$1" ] || ln "$claim.of-$$" "$claim" 2>/dev/null || :
    rm -f "$claim.of-$$"
}
trap '[ "$(cat "$claim" 2>/dev/null)" != "$mine" ] || rm -f "$claim"' EXIT
found='' waited=0 seen=''
while [ -z "$found" ] && [ "$(cat "$claim" 2>/dev/null)" != "$mine" ]; do
    if ! (set -C; printf '%s\n' "$mine" >"$claim") 2>/dev/null; then
        holder=$(cat "$claim" 2>/dev/null)
        [ "$holder" = "$seen" ] || { seen=$holder waited=0; }
        if [ "$waited" -gt "$patience" ]; then
            echo "$claim cannot be made" >&2; exit 1
        fi
        if [ "${holder%% *}" = "$node" ] || [ "$waited" -eq "$patience" ]; then
            take_away "$holder"
        else
            sleep 1
        fi
        waited=$((waited + 1))
    fi
    found=$(queued) || exit
done
if [ -z "$found" ]; then
    federation=$(timeout -s KILL "$limit" scontrol show federation) || exit
    here=$(printf '%s\n' "$federation" | sed -n 's/^Self: *\([^:]*\):.*/\1/p')
    timeout -s KILL "$limit" sbatch ${here:+"--clusters=$here"} "$@" >/dev/null || exit
    found=$(queued) || exit
fi
printf '%s\n' "$found" >"$note.new" && mv "$note.new" "$note"
printf '%s\n' "$found"
"""
"""Runs under the lock of a job's name. Every value is an argument; nothing of it is read as shell text.

The lock keeps two of one login node apart. On some shared file systems no lock holds between two, so the node
that submits also leaves a claim, a file made with O_EXCL. Who finds that of another waits for as long as that
one can be at it, and looks for the job; one of its own node was left by somebody killed, as it has the lock.
Several may come to take a dead one's claim away: it is moved first, and put back if it is another's by then.
Before anybody submits, the claim is looked at once more.

In a federation the job is for this cluster alone: what is staged, and its folder, lie here.
"""

_CANNOT_BE = (  # Slurm's words (slurm_errno.c) and those of sbatch about its own options
    "access/permission denied",
    "does not look like a batch script",
    "group not permitted to use this partition",
    "invalid account",
    "invalid constraint",
    "invalid feature specification",
    "invalid generic resource",
    "invalid job dependency",
    "invalid license",
    "invalid node name",
    "invalid partition",
    "invalid qos",
    "invalid --",
    "invalid wckey",
    "more processors requested than permitted",
    "node count specification invalid",
    "requested node configuration is not available",
    "requested reservation is invalid",
    "requested time limit is invalid",
    "requires an argument",
    "unrecognized option",
)


def refused(job: str, cluster: str, done: Completed) -> UserError | SystemFailure:
    """Return the error for a job that Slurm refused, in the words of its own command."""
    lines = [
        line.strip().removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()
    ]
    message = shown("; ".join(line for line in lines if line) or f"exit code {done.exit_code}", at_most=500)
    if any(words in message.lower() for words in _CANNOT_BE):
        return UserError(f"{cluster} cannot run job {job}: {message}")
    return SystemFailure(f"job {job} could not be submitted on {cluster}: {message}")


def submit_command(spec: JobSpec, *, root: str, folder: str) -> list[str]:
    """Submits a job unless squeue has one of its name below `root`; prints its line of squeue.

    `folder` is the job's own, with its lock and the note of what was printed. Two that come at the same time
    submit once, on whichever login nodes: lock and claim last until the remote sbatch has ended, whatever
    becomes of the connection.
    """
    under_lock = ["flock", f"--timeout={_LOCK_TIMEOUT_S}", f"{folder}/lock"]
    limits = [str(_COMMAND_LIMIT_S), str(_patience_s())]
    values = [spec.name, SQUEUE_FORMAT, root, f"{folder}/squeue", *limits]
    return ["env", TIME_FORMAT, *under_lock, "sh", "-c", _LOOK_UP_OR_SUBMIT, "sh", *values, *_options(spec)]


def timeout_s() -> int:
    """Return how long the command of `submit_command` may take, waiting for lock and claims included."""
    return _LOCK_TIMEOUT_S + _patience_s() + 3 * _COMMAND_LIMIT_S


def _patience_s() -> int:
    """Until whoever has made a claim has a job in the queue, or never will: squeue, sbatch, and a bit."""
    return 2 * _COMMAND_LIMIT_S + 5


def _options(spec: JobSpec) -> list[str]:
    """What makes up the job's identity; the rest is in the #SBATCH lines of its script."""
    return [
        *("--parsable", "--no-requeue", "--kill-on-invalid-dep=yes"),
        f"--job-name={spec.name}",
        f"--chdir={spec.directory}",
        f"--output={_as_pattern(spec.log_path)}",
        f"--time={math.ceil(spec.time_limit_s / 60)}",
        posixpath.join(spec.directory, "job.sh"),
    ]


def _as_pattern(path: str) -> str:
    """A path as Slurm's file name pattern, in which %j is the job's id unless there is a backslash."""
    return path.replace("\\", "\\\\") if "\\" in path else path.replace("%", "%%")
