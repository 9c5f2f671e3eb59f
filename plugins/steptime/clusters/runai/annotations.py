"""What a workload's annotations keep of its job: enough to know it again without its note on the volume."""

import json
import time
from collections.abc import Mapping

from steptime.clusters.base import JobSpec
from steptime.clusters.runai.client import Workload, unix_time
from steptime.clusters.runai.volume import RunaiJob

JOB_NAME = "steptime-job"
_DIRECTORY, _LOG = "steptime-directory", "steptime-log"
_TIME_LIMIT_S = "steptime-time-limit-s"
_INSTALLATION = "steptime-installation"


def annotations_of(spec: JobSpec) -> dict[str, str]:
    """Return the annotations of a job's workload."""
    return {
        JOB_NAME: spec.name,
        _DIRECTORY: spec.directory,
        _LOG: spec.log_path,
        _TIME_LIMIT_S: str(spec.time_limit_s),
        _INSTALLATION: json.dumps(spec.installation.model_dump() if spec.installation else None),
    }


def kept_annotations(details: Workload) -> dict[str, str]:
    """Return the annotations of a workload, out of what it was made from."""
    kept = (details.get("spec") or {}).get("annotations") or ()
    return {str(entry.get("name")): str(entry.get("value") or "") for entry in kept}


def job_of(
    annotations: Mapping[str, str], *, workload: str, workload_id: str, kind: str, created_at: str | None
) -> RunaiJob:
    """Return the job of the workload of that name and id, with these annotations."""
    return RunaiJob(
        name=annotations[JOB_NAME],
        workload=workload,
        workload_id=workload_id,
        kind=kind,
        directory=annotations[_DIRECTORY],
        log_path=annotations[_LOG],
        time_limit_s=int(annotations[_TIME_LIMIT_S]),
        submitted_at=unix_time(created_at) or time.time(),
        installation=json.loads(annotations.get(_INSTALLATION) or "null"),
    )
