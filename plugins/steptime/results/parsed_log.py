"""What was read of a run's log, kept beside it: the steps as JSON lines, and all else in one document.

Tasks hand on names and small numbers; whoever needs the steps reads them from here.
"""

import json
from pathlib import PurePosixPath

from steptime.clusters.base import Cluster, Job
from steptime.errors import SystemFailure
from steptime.logs.models import STEP, TrainingLog

STEPS_FILE = "steps.jsonl"
PARSED_LOG_FILE = "reading.json"

_PIECE_BYTES = 8 << 20


async def keep_parsed_log(cluster: Cluster, job: Job, log: TrainingLog) -> None:
    """Write what was read beside the job's log, in place of an earlier reading. Raises SystemFailure."""
    lines = b"".join(STEP.dump_json(step, exclude_none=True) + b"\n" for step in log.steps)
    await cluster.write(_beside(job, STEPS_FILE), lines)
    await cluster.write(_beside(job, PARSED_LOG_FILE), log.model_dump_json(exclude={"steps"}).encode())


async def kept_parsed_log(cluster: Cluster, job: Job) -> TrainingLog:
    """Read what `keep_parsed_log` wrote. Raises SystemFailure if it is gone or cannot be read."""
    lines = await read_whole(cluster, _beside(job, STEPS_FILE))
    rest = await read_whole(cluster, _beside(job, PARSED_LOG_FILE))
    try:
        steps = tuple(STEP.validate_json(line) for line in lines.splitlines())
        return TrainingLog.model_validate({**json.loads(rest), "steps": steps})
    except (ValueError, TypeError):
        raise SystemFailure(
            f"{STEPS_FILE} and {PARSED_LOG_FILE} beside {job.log_path} on cluster '{job.cluster}' are gone "
            "or were changed: clear the task 'parse', which writes them anew."
        ) from None


async def read_whole(cluster: Cluster, path: str) -> bytes:
    """Read all of a file on the cluster; b"" if there is none."""
    content = b""
    while piece := await cluster.read(path, len(content), _PIECE_BYTES):
        content += piece
    return content


def _beside(job: Job, name: str) -> str:
    return str(PurePosixPath(job.log_path).with_name(name))
