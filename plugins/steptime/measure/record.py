"""The record of one run: what was requested, what ran, how it was made, where, when, and how it ended.

It is one JSON document without secrets in the metrics store. It is written once: reading the log again does
not change what ran.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from steptime import __version__
from steptime.clusters.base import SCRIPT_FILE, Cluster, JobStatus
from steptime.logs.training_log import TrainingLog
from steptime.recipes.environment import ACCESS_TOKEN, PASSWORD_IN_ADDRESS, SENSITIVE_WORDS, is_secret_name
from steptime.store.run_models import Submission
from steptime.store.run_records import EarlierAttempt, RunRecord

_PROJECT = Path(__file__).resolve().parents[3]
_GIT_TIMEOUT_S = 10
_PIECE_BYTES = 8 << 20
_MOST_BYTES = 4 * _PIECE_BYTES
REDACTED = "(not stored)"

_SECRET_NAME = re.compile(rf"{SENSITIVE_WORDS}(?:_|$)", re.IGNORECASE)
# One word of a shell, of pieces as `shlex.quote` makes them; a quoted piece may have line ends.
_ASSIGNMENT = re.compile(r"""(?P<name>\b[A-Za-z_]\w*)=(?P<value>(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\;&|])+)""")
_SHORTEST = 6
"""Fewest characters of a secret that is replaced wherever it occurs: shorter ones would match harmless text.
"""


def make_record(
    submitted: Submission,
    status: JobStatus,
    log: TrainingLog,
    earlier_attempts: tuple[EarlierAttempt, ...] = (),
) -> str:
    """Make the record of a run that has ended, as JSON text without secrets (see `redact`)."""
    of_trainer = [printed for printed in (log.started, log.ended) if printed is not None]
    nodes = [printed["node_names"] for printed in of_trainer if printed.get("node_names")]
    record = RunRecord(
        job=submitted.job,
        attempt=submitted.attempt,
        status=status,
        earlier_attempts=earlier_attempts,
        nodes=tuple(map(str, nodes[-1])) if nodes else status.nodes,
        versions={
            name: version
            for printed in of_trainer
            for name, version in (printed.get("versions") or {}).items()
            if version is not None
        },
        launch=(log.started or {}).get("launch") or {},
        node_check=log.node_check,
        run=submitted.run,
        request=submitted.request,
        provenance=submitted.provenance,
    )
    return format_record(redact(json.loads(record.model_dump_json())))


def format_record(record: dict[str, Any]) -> str:
    """Format the record of a run, a JSON document, as text."""
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


async def with_script(cluster: Cluster, submitted: Submission) -> Submission:
    """Return the submission with the text of its job script, read from the job's folder."""
    script = await read_whole(cluster, str(PurePosixPath(submitted.job.directory) / SCRIPT_FILE))
    provenance = submitted.provenance.model_copy(update={"script": script.decode(errors="replace")})
    return submitted.model_copy(update={"provenance": provenance})


async def read_whole(cluster: Cluster, path: str) -> bytes:
    """Read a file on the cluster, at most its first 32 MiB; b"" if there is none."""
    content = b""
    while len(content) < _MOST_BYTES and (piece := await cluster.read(path, len(content), _PIECE_BYTES)):
        content += piece
    return content


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
    `TOKENIZERS_PARALLELISM`), wherever they occur, passwords in addresses (`http://user:password@proxy`), and
    access tokens in known forms (`ghp_…`, `glpat-…`).
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


def _may_be_secret(name: str) -> bool:
    return is_secret_name(name) or _SECRET_NAME.search(name) is not None


def _is_secret(name: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and _may_be_secret(name)


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
    return ACCESS_TOKEN.sub(REDACTED, PASSWORD_IN_ADDRESS.sub(rf"\g<before>{REDACTED}", text))


def _without_secret(assignment: re.Match[str]) -> str:
    """Return a script's assignment with its secret replaced; a reference such as `"$HF_TOKEN"` is kept."""
    name, value = assignment["name"], assignment["value"]
    if not _may_be_secret(name) or value.strip("'\"").startswith("$"):
        return assignment[0]
    return f"{name}='{REDACTED}'"
