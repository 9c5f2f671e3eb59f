"""Submitting one job to Slurm: the command on the login node, and whose turn it is when it fails."""

import math
import posixpath
import re

from steptime.clusters.base import Completed, JobSpec
from steptime.clusters.slurm.states import SQUEUE_FORMAT, TIME_FORMAT
from steptime.errors import SubmitLimit, SystemFailure, UserError, shown

_LOCK_TIMEOUT_S = 60
_COMMAND_LIMIT_S = 60
"""After which squeue, scontrol and sbatch are killed: a job that is not queued then will not be."""
_COMMANDS = 4
"""squeue, scontrol, sbatch and squeue again: what a submission runs at most after it has made its claim."""
_RENEW_S = 5
"""How often the holder of a claim touches it."""
_CLAIM_LASTS_S = 125
"""Without being touched. A killed holder's last command has ended by then, and NFS shows new times."""

_LOOK_UP_OR_SUBMIT = r"""
name=$1 format=$2 root=$3 folder=$4 directory=$5 lock_wait=$6 limit=$7 renew=$8 lasts=$9; shift 9
note=$folder/squeue claim=$folder/squeue.claim node=$(uname -n) renewing=''
mine="$node $$ $(date +%s)"
queued() {
    of_name=$(timeout -s KILL "$limit" \
        squeue --local --me --states=all --noheader --name="$name" --Format="$format") || return
    printf '%s\n' "$of_name" | grep -F -e "|$root/" || :
}
note() { printf '%s\n' "$1" >"$note.new" && mv "$note.new" "$note"; }
owner_and_time() { echo "$(cat "$1" 2>/dev/null) $(stat -c %Y "$1" 2>/dev/null)"; }
is_mine() { [ "$(cat "$claim" 2>/dev/null)" = "$mine" ]; }
renew_claim() {
    rounds=0
    while [ "$rounds" -lt $((9 * limit / renew)) ] && kill -0 $$ 2>/dev/null; do
        ! is_mine || touch -c "$claim"
        sleep "$renew"
        rounds=$((rounds + 1))
    done
}
take_away() {
    mv "$claim" "$claim.of-$$" 2>/dev/null || return 0
    [ "$(owner_and_time "$claim.of-$$")" = "$1" ] || ln "$claim.of-$$" "$claim" 2>/dev/null || :
    rm -f "$claim.of-$$"
}
exec 9>>"$folder/lock"
flock --timeout="$lock_wait" 9 || { echo "$folder/lock is held by another submission" >&2; exit 1; }
trap '[ -z "$renewing" ] || kill "$renewing" 2>/dev/null; ! is_mine || rm -f "$claim"' EXIT
found='' waited=0 seen=''
while [ -z "$found" ] && ! is_mine; do
    if ! (set -C; printf '%s\n' "$mine" >"$claim") 2>/dev/null; then
        holder=$(owner_and_time "$claim")
        [ "$holder" = "$seen" ] || { seen=$holder waited=0; }
        if [ "$waited" -gt "$lasts" ]; then
            echo "$claim cannot be made" >&2; exit 1
        fi
        if [ "${holder%% *}" = "$node" ] || [ "$waited" -eq "$lasts" ]; then
            take_away "$holder"
        else
            sleep 1
        fi
        waited=$((waited + 1))
    elif [ -z "$renewing" ]; then
        renew_claim </dev/null >/dev/null 2>&1 9>&- &
        renewing=$!
    fi
    found=$(queued) || exit
done
if [ -z "$found" ]; then
    federation=$(timeout -s KILL "$limit" scontrol show federation) || exit
    here=$(printf '%s\n' "$federation" | sed -n 's/^Self: *\([^:]*\):.*/\1/p')
    is_mine || { echo "$claim was taken while this submission stood still" >&2; exit 1; }
    id=$(timeout -s KILL "$limit" sbatch ${here:+"--clusters=$here"} "$@") || exit
    note "${id%%;*}|PENDING|0|$(date +%s)|N/A|N/A||$name|None|$directory|"
    found=$(queued) || found=''
fi
[ -z "$found" ] || note "$found"
cat "$note"
"""
"""Looks a job up by its name and submits it if it is not there. Every value is an argument, never shell text.

A lock keeps two submissions on one login node apart. On some shared file systems no lock holds between
nodes, so the submitter also makes a claim: a file created with O_EXCL that it touches as long as it lives.
A submission that finds the claim of another node waits until the job is in the queue, or until the claim has
not been touched for `lasts` seconds: its holder is gone then. A claim of its own node is a leftover, since it
has the lock. To take a claim away it is renamed first, and put back if it was touched or replaced meanwhile.
Before sbatch runs, the claim is checked once more.

What sbatch printed is noted at once: a queue that does not show the job after that has it all the same.

In a federation the job is submitted to this cluster alone: what is staged, and its folder, are here.
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


_SUBMIT_LIMIT = re.compile(r"SubmitJobs?(Limit|Per)")
"""In each of Slurm's reasons that count queued jobs: QOSMaxSubmitJobPerUserLimit, AssocMaxSubmitJobLimit,
AssocGrpSubmitJobsLimit, QOSGrpSubmitJobsLimit and MaxSubmitJobsPerAccount. The sentence "Job violates
accounting/QOS policy" that follows is the same for limits on a job's size and time, so it says nothing."""
_JOB_LIMIT = re.compile(r"\b(QOS|Assoc|Max)\w*(PerJob|PerNode|Min[A-Z])\w*")
"""Of a single job's size or time, which no waiting changes: QOSMaxWallDurationPerJobLimit, QOSMinGRES."""


def refused(job: str, cluster: str, done: Completed) -> UserError | SystemFailure:
    """Return the error for a job that Slurm refused, in the words of its own command."""
    lines = [
        line.strip().removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines()
    ]
    message = shown("; ".join(line for line in lines if line) or f"exit code {done.exit_code}", at_most=500)
    if _SUBMIT_LIMIT.search(message):
        return SubmitLimit(f"{cluster} accepts no more jobs for now, and refused {job}: {message}")
    if any(words in message.lower() for words in _CANNOT_BE) or _JOB_LIMIT.search(message):
        return UserError(f"{cluster} cannot run job {job}: {message}")
    return SystemFailure(f"job {job} could not be submitted on {cluster}: {message}")


def submit_command(spec: JobSpec, *, root: str, folder: str) -> list[str]:
    """Return the command that submits a job unless squeue has one of its name below `root`.

    It prints the job's line of squeue. `folder` is the job's own, with its lock, its claim and a note of what
    was printed. Two submissions at the same time submit once, on whichever login nodes: lock and claim last
    until the remote sbatch has ended, whatever becomes of the connection.
    """
    limits = map(str, (_LOCK_TIMEOUT_S, _COMMAND_LIMIT_S, _RENEW_S, _CLAIM_LASTS_S))
    values = [spec.name, SQUEUE_FORMAT, root, folder, spec.directory, *limits]
    return ["env", TIME_FORMAT, "sh", "-c", _LOOK_UP_OR_SUBMIT, "sh", *values, *_options(spec)]


def timeout_s() -> int:
    """Return how long the command of `submit_command` may take, including waits for lock and claim."""
    return _LOCK_TIMEOUT_S + _CLAIM_LASTS_S + 2 * _COMMANDS * _COMMAND_LIMIT_S


def _options(spec: JobSpec) -> list[str]:
    """What makes up the job's identity; the rest is in the #SBATCH lines of its script."""
    return [
        *("--parsable", "--no-requeue", "--kill-on-invalid-dep=yes", "--export=ALL"),
        f"--job-name={spec.name}",
        f"--chdir={spec.directory}",
        f"--output={_as_pattern(spec.log_path)}",
        f"--time={math.ceil(spec.time_limit_s / 60)}",
        posixpath.join(spec.directory, "job.sh"),
    ]


def _as_pattern(path: str) -> str:
    """A path as Slurm's file name pattern, in which %j is the job's id unless there is a backslash."""
    return path.replace("\\", "\\\\") if "\\" in path else path.replace("%", "%%")
