"""The record of one run: what was requested, what ran, how it was made, where, when, and how it ended.

It is one JSON document without secrets in the metrics store. It is written once: reading the log again does
not change what ran.
"""

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from steptime import __version__
from steptime.clusters.base import SCRIPT_FILE, Cluster, Job, JobStatus
from steptime.errors import UserError, one_line
from steptime.frozen import Frozen
from steptime.logs.models import TrainingLog
from steptime.recipes.environment import PASSWORD_IN_ADDRESS, SENSITIVE_WORDS
from steptime.recipes.models import Run
from steptime.recipes.request import PlanRequest
from steptime.results.models import Provenance, Result, Submission

_PROJECT = Path(__file__).resolve().parents[3]
_GIT_TIMEOUT_S = 10
_PIECE_BYTES = 8 << 20
REDACTED = "(not stored)"

_SECRET_NAME = re.compile(rf"{SENSITIVE_WORDS}(?:_|$)", re.IGNORECASE)
# One word of a shell, of pieces as `shlex.quote` makes them; a quoted piece may have line ends.
_ASSIGNMENT = re.compile(r"""(?P<name>\b[A-Za-z_]\w*)=(?P<value>(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\;&|])+)""")
_SHORTEST = 6
"""Fewest characters of a secret that is replaced wherever it occurs: shorter ones would match harmless text.
"""


class EarlierAttempt(Frozen):
    """An earlier job of a run, replaced after a fault of the cluster or because somebody cleared its task."""

    job: Job
    status: JobStatus


class RunRecord(Frozen):
    """The record of a run, as stored in JSON: what was planned, what ran, where, and how it ended."""

    schema_version: Literal[1] = 1
    job: Job
    attempt: PositiveInt
    """Number of the job among the run's jobs, from 1."""
    status: JobStatus
    """How the job ended, with its start and end times."""
    earlier_attempts: tuple[EarlierAttempt, ...]
    """The run's jobs before this one, in order."""
    nodes: tuple[str, ...]
    """Nodes in the order of their ranks if the training recorded them, else in the cluster's order."""
    versions: dict[str, Any]
    """Versions of libraries and drivers as the training recorded them; empty if it did not."""
    launch: dict[str, Any] = Field(default_factory=dict)
    """How the run's ranks were started, as the training recorded: `numa_bound_ranks` and `vboost`."""
    node_check: dict[str, Any] | None = None
    """What the check of the run's nodes measured before the training; None without such a check."""
    run: Run
    """The planned run, with its recipe and the resulting value of every option."""
    request: PlanRequest
    """The request for this run alone."""
    provenance: Provenance


def make_record(
    submitted: Submission,
    status: JobStatus,
    log: TrainingLog,
    earlier_attempts: tuple[EarlierAttempt, ...] = (),
) -> str:
    """Make the record of a run that has ended, as JSON text without secrets (see `redact`)."""
    of_trainer = [one for one in (log.started, log.ended) if one is not None]
    nodes = [one["node_names"] for one in of_trainer if one.get("node_names")]
    record = RunRecord(
        job=submitted.job,
        attempt=submitted.attempt,
        status=status,
        earlier_attempts=earlier_attempts,
        nodes=tuple(map(str, nodes[-1])) if nodes else status.nodes,
        versions={
            name: version
            for one in of_trainer
            for name, version in (one.get("versions") or {}).items()
            if version is not None
        },
        launch=(log.started or {}).get("launch") or {},
        node_check=log.node_check,
        run=submitted.run,
        request=submitted.request,
        provenance=submitted.made_by,
    )
    return format_record(redact(json.loads(record.model_dump_json())))


def format_record(record: dict[str, Any]) -> str:
    """Format the record of a run, a JSON document, as text."""
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def parse_record(record: str) -> RunRecord | None:
    """Parse the text of a run's record; None if it is damaged, or of a version with other fields."""
    try:
        return RunRecord.model_validate_json(record)
    except ValidationError:
        return None


async def with_script(cluster: Cluster, submitted: Submission) -> Submission:
    """Return the submission with the text of its job script, read from the job's folder."""
    script = await read_whole(cluster, str(PurePosixPath(submitted.job.directory) / SCRIPT_FILE))
    made_by = submitted.made_by.model_copy(update={"script": script.decode(errors="replace")})
    return submitted.model_copy(update={"made_by": made_by})


async def read_whole(cluster: Cluster, path: str) -> bytes:
    """Read a whole file on the cluster; b"" if there is none."""
    content = b""
    while piece := await cluster.read(path, len(content), _PIECE_BYTES):
        content += piece
    return content


def measured_result(
    record: str, status: dict[str, Any], measurement: dict[str, Any] | None, log: dict[str, Any]
) -> Result:
    """Rebuild a measured run from its record and the other JSON that the store has about it.

    Raises UserError if this version of steptime cannot read the record.
    """
    recorded = parse_record(record)
    if recorded is None:
        log_path = one_line(log["path"], at_most=None)
        raise UserError(
            f"this version of steptime cannot read the record of the run with the log {log_path}: "
            "repeat the run."
        )
    submitted = Submission(
        run=recorded.run,
        request=recorded.request,
        job=recorded.job,
        attempt=recorded.attempt,
        made_by=recorded.provenance,
    )
    return Result.model_validate(
        {"submitted": submitted, "status": status, "measurement": measurement, "log": log, "record": record}
    )


def describe_code() -> dict[str, Any]:
    """Return the version and git commit of the steptime that runs here, by fields of `Provenance`.

    `git_clean` says whether the checkout has no changes. It and the commit are None outside of a checkout.
    """
    # An installed package may be inside another repository: only this project's own repository counts.
    is_checkout = _git("rev-parse", "--show-toplevel") == str(_PROJECT)
    commit = _git("rev-parse", "HEAD") if is_checkout else None
    changes = _git("--no-optional-locks", "status", "--porcelain") if is_checkout else None
    return {
        "steptime_version": __version__,
        "git_commit": commit,
        "git_clean": None if changes is None else not changes,
    }


def _git(*arguments: str) -> str | None:
    """Return the output of git in this project's folder; None if git is missing or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_PROJECT), *arguments],  # noqa: S607 (the user's git, wherever it is)
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def redact(document: Any) -> Any:
    """Return a JSON document with every secret, at any depth and within texts, replaced by `(not stored)`.

    Secrets are the values of variables with telling names (`HF_TOKEN`, `WANDB_API_KEY`, …; not
    `TOKENIZERS_PARALLELISM`), wherever they occur, and passwords in addresses (`http://user:password@proxy`).
    """
    return _without(document, _longest_first(_secrets(document)))


def redact_text(text: str, *environments: Mapping[str, str]) -> str:
    """Return a text, such as a job script, with its secrets replaced by `(not stored)`.

    The secrets in `environments` are replaced, too.
    """
    return _without_in_text(text, _longest_first(_secrets(list(environments))))


def _secrets(document: Any) -> Iterator[str]:
    """Yield the values whose names mark them as secrets, such as that of `HF_TOKEN`."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            if _is_secret(name, value):
                yield value
            else:
                yield from _secrets(value)
    elif isinstance(document, list):
        for value in document:
            yield from _secrets(value)


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and _SECRET_NAME.search(name) is not None


def _longest_first(secrets: Iterator[str]) -> list[str]:
    """Return secrets as they are and as a shell quotes them, longest first: one may be part of another."""
    forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in (secret, shlex.quote(secret))}
    return sorted(forms - {REDACTED, shlex.quote(REDACTED)}, key=len, reverse=True)


def _without(document: Any, secrets: list[str]) -> Any:
    if isinstance(document, Mapping):
        return {
            name: REDACTED if _is_secret(name, value) else _without(value, secrets)
            for name, value in document.items()
        }
    if isinstance(document, list):
        return [_without(value, secrets) for value in document]
    return _without_in_text(document, secrets) if isinstance(document, str) else document


def _without_in_text(text: str, secrets: list[str]) -> str:
    text = _ASSIGNMENT.sub(_without_secret, text)
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return PASSWORD_IN_ADDRESS.sub(rf"\g<before>{REDACTED}", text)


def _without_secret(assignment: re.Match[str]) -> str:
    """Return a script's assignment with its secret replaced; a reference such as `"$HF_TOKEN"` is kept."""
    name, value = assignment["name"], assignment["value"]
    if not _SECRET_NAME.search(name) or value.strip("'\"").startswith("$"):
        return assignment[0]
    return f"{name}='{REDACTED}'"


_NO_CHANGE = {
    *("schema_version", "experiment", "cluster", "mode", "repeat", "checkpoint_path", "model_flops"),
    "environment",  # the whole one is in the provenance
}
"""Fields of a planned run that do not change how it runs."""
_NODES = "nodes"


_FEW_NODES = 4
"""Up to this many nodes are named; of more, only the number of different ones is given."""


def changes(before: str, after: str) -> list[str]:
    """Return what changed between the records of two runs of a series, as texts such as `image a → b`."""
    nodes = (", ".join(json.loads(record)["nodes"]) for record in (before, after))
    return setup_changes(before, after) + node_changes(*nodes)


def setup_changes(before: str, after: str) -> list[str]:
    """Return what changed between the records of two runs, nodes aside, as texts such as `image a → b`."""
    return [_event(*one) for one in record_differences(before, after) if one[0] != _NODES]


def node_changes(before: str | None, after: str | None) -> list[str]:
    """Return at most one text on how the nodes changed; `before` and `after` are from the column `nodes`."""
    if before == after:
        return []
    usual, own = (set(filter(None, (nodes or "").split(", "))) for nodes in (before, after))
    if max(len(usual), len(own)) <= _FEW_NODES:
        return [_event(_NODES, _value(before), _value(after))]
    others = len(own - usual)
    return [f"nodes: {others} of {len(own)} are others"] if others else ["nodes: in another order"]


def changed_to(event: str) -> tuple[str, str]:
    """Return the name and the new value of a change: `("image", "b")` for `image a → b`."""
    return event.partition(" ")[0], event.rpartition(" → ")[2]


def has_changed_to(made: Mapping[str, Any], event: str) -> bool:
    """Return whether a run has the new value (b) of a change (`event`, such as `image a → b`).

    `made` is the run's setup, as `read_setup` returns it.
    """
    values = [_value(value) for name, value in made.items() if event.startswith(f"{name} ")]
    return event.rpartition(" → ")[2] in (values or ["none"])


def is_notable(event: str) -> bool:
    """Return whether a change such as `image a → b` is about more than nodes or steptime's version."""
    return event.partition(" ")[0].rstrip(":") not in (_NODES, "steptime", "commit")


def _event(name: str, before: str, after: str) -> str:
    return f"{name} {before} → {after}"


def made_sha256(record: str) -> str | None:
    """Return a hash of a run's software and settings, whatever its nodes; None for an unreadable record."""
    if parse_record(record) is None:
        return None
    made = read_setup(record)
    del made[_NODES]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def record_differences(before: str, after: str) -> list[tuple[str, str, str]]:
    """Return where two records differ in image, versions, driver, commit, options and nodes.

    Each difference is a name with the earlier and the later value.
    """
    one, other = read_setup(before), read_setup(after)
    return [
        (name, _value(one.get(name)), _value(other.get(name)))
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    ]


def read_setup(record: str) -> dict[str, Any]:
    """Return by name all values in a record that may affect the run's speed, such as image and options."""
    content = json.loads(record)
    made_by, planned = content["provenance"], content["run"]
    staged = made_by["staged"]
    run = dict(_leaves({name: value for name, value in planned.items() if name not in _NO_CHANGE}))
    # The path of the trainer follows from its hash, and the image is included above.
    environment = {name: value for name, value in made_by["environment"].items() if name != "PYTHONPATH"}
    run.pop("recipe.image", None)
    run.pop("cluster_options.exclude", None)  # excluded nodes show in the nodes that it had
    return {
        "image": staged.get("image"),
        "image digest": staged.get("image_digest"),
        **{str(name): release for name, release in content["versions"].items()},
        "steptime": made_by["steptime_version"],
        "commit": made_by["git_commit"],
        "venv lock": staged.get("venv_lock_sha256"),
        "trainer": staged.get("trainer_sha256"),
        **run,
        **environment,
        _NODES: ", ".join(content["nodes"]),
    }


def _leaves(content: Mapping[str, Any], within: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):  # JSON has only dicts, and checking for Mapping is slow
            yield from _leaves(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def _value(value: Any) -> str:
    """Return a value as it can stand in a sentence; hashes are cut to 12 digits."""
    text = "none" if value in (None, "") else str(value)
    digits = text.removeprefix("sha256:")
    is_hash = len(digits) >= 40 and all(digit in "0123456789abcdef" for digit in digits)
    return digits[:12] if is_hash else one_line(text)
