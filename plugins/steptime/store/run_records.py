"""The record of one run, as the store keeps it: what was planned, what ran, where, and how it ended.

It is one JSON document without secrets. It is written once: reading the log again does not change what ran.
`measure.record` makes it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt, ValidationError

from steptime.clusters.base import Job, JobStatus
from steptime.errors import UserError, one_line
from steptime.frozen import Frozen
from steptime.recipes.models import Run
from steptime.recipes.request import PlanRequest
from steptime.store.run_models import Provenance, Result, Submission

NODES = "nodes"
"""The name under which `read_setup` returns the nodes of a run."""
_NO_CHANGE = {
    *("schema_version", "experiment", "cluster", "mode", "repeat", "checkpoint_path", "model_flops"),
    *("cell", "trial", "keep_checkpoint", "for_judging"),
    "environment",  # the whole one is in the provenance
}
"""Fields of a planned run that do not change how it runs."""


_SETUP_COLUMNS = (
    *("image", "image_digest", "nvidia_driver", "nccl", "versions", "variables"),
    *("steptime_version", "git_commit", "trainer_sha256", NODES),
)
_UNINFORMATIVE = ("PYTHONPATH",)
"""Variables that follow from the hash of the trainer."""


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


def parse_record(record: str) -> RunRecord | None:
    """Parse the text of a run's record; None if it is damaged, or of a version with other fields."""
    try:
        return RunRecord.model_validate_json(record)
    except ValidationError:
        return None


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
        provenance=recorded.provenance,
    )
    return Result.model_validate(
        {"submitted": submitted, "status": status, "measurement": measurement, "log": log, "record": record}
    )


def setup_sha256(record: str) -> str | None:
    """Return a hash of a run's software and settings, whatever its nodes; None for an unreadable record."""
    if parse_record(record) is None:
        return None
    setup = read_setup(record)
    del setup[NODES]
    return hashlib.sha256(json.dumps(setup, sort_keys=True).encode()).hexdigest()


def read_setup(record: str) -> dict[str, Any]:
    """Return by name all values in a record that may affect the run's speed, such as image and options."""
    content = json.loads(record)
    provenance, planned = content["provenance"], content["run"]
    staged = provenance["staged"]
    run = dict(_leaves({name: value for name, value in planned.items() if name not in _NO_CHANGE}))
    variables = provenance["environment"].items()
    environment = {name: value for name, value in variables if name not in _UNINFORMATIVE}
    run.pop("recipe.image", None)  # the image is included above
    run.pop("cluster_options.exclude", None)  # excluded nodes show in the nodes that it had
    return {
        "image": staged.get("image"),
        "image digest": staged.get("image_digest"),
        **{str(name): release for name, release in content["versions"].items()},
        "steptime": provenance["steptime_version"],
        "commit": provenance["git_commit"],
        "venv lock": staged.get("venv_lock_sha256"),
        "trainer": staged.get("trainer_sha256"),
        **run,
        **environment,
        NODES: join_nodes(content["nodes"]),
    }


def setup_columns(record: str) -> dict[str, str | None]:
    """Return the columns of the store that a record determines: image, versions, variables, commit and nodes.

    All are None for a record that this version of steptime cannot read.
    """
    recorded = parse_record(record)
    if recorded is None:
        return dict.fromkeys(_SETUP_COLUMNS)
    provenance, versions = recorded.provenance, recorded.versions
    environment = provenance.environment.items()
    values = (
        provenance.staged.image,
        provenance.staged.image_digest,
        versions.get("nvidia_driver"),
        versions.get("nccl"),
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        ", ".join(f"{name}={value}" for name, value in environment if name not in _UNINFORMATIVE),
        provenance.steptime_version,
        provenance.git_commit,
        provenance.staged.trainer_sha256,
        join_nodes(recorded.nodes),
    )
    return {name: str(value) if value else None for name, value in zip(_SETUP_COLUMNS, values, strict=True)}


def join_nodes(names: Iterable[str]) -> str:
    """Return the text of the column `nodes` for these names."""
    return ", ".join(names)


def split_nodes(nodes: str | None) -> list[str]:
    """Return the names in a text of the column `nodes`; none if it is None or empty."""
    return nodes.split(", ") if nodes else []


def _leaves(content: Mapping[str, Any], within: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):  # JSON has only dicts, and checking for Mapping is slow
            yield from _leaves(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
