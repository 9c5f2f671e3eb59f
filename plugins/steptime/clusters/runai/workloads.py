"""The names of Run:ai workloads, and the requests that create them."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from steptime.clusters.runai.answers import Project
from steptime.clusters.runai.client import DISTRIBUTED, TRAININGS
from steptime.clusters.runai.config import RunaiConfig

PREFIX = "steptime-"
"""Prefix of all names of steptime's workloads: one request lists them all."""
_LONGEST = 50
"""Most characters of a workload's name. Pods and their services are called `<name>-worker-<number>`, and a
name in Kubernetes has at most 63."""


def workload_name(job_name: str) -> str:
    """Return the workload name of a job: legal in Kubernetes, and different for every job.

    It is a shortened form of the job's name, followed by a hash. An annotation has the full name.

    >>> workload_name("pretrain_llama3.1_8b_fp8_64-0a1b2c3d4e-1")
    'steptime-pretrain-llama3-1-8b-fp8-64-0a-4c3b48120a'
    """
    digest = hashlib.sha256(job_name.encode()).hexdigest()[:10]
    readable = re.sub("[^a-z0-9]+", "-", job_name.lower())
    head = f"{PREFIX}{readable.strip('-')}"[: _LONGEST - 1 - len(digest)].rstrip("-")
    return f"{head}-{digest}"


def workload_request(
    config: RunaiConfig,
    project: Project,
    *,
    job_name: str,
    start_script: str,
    gpus: int,
    image: str | None = None,
    variables: Mapping[str, str],
    annotations: Mapping[str, str],
) -> tuple[str, dict[str, Any]]:
    """Return the kind and creation request of a job's workload; `gpus` 0 means one pod without GPUs.

    Raises UserError if the GPUs do not fill whole pods.
    """
    pods = config.pods(gpus) if gpus else 1
    spec: dict[str, Any] = {
        "image": image or config.image,
        # Split at blanks by Run:ai: the path has none, and nothing of a user's stands here.
        "command": "bash",
        "args": start_script,
        "environmentVariables": [
            *({"name": name, "value": value} for name, value in variables.items()),
            {"name": "STEPTIME_PODS", "value": str(pods)},
            {"name": "STEPTIME_NODE", "podFieldRef": {"path": "spec.nodeName"}},
        ],
        "annotations": [{"name": name, "value": value} for name, value in annotations.items()],
        "storage": {
            "pvc": [
                {
                    "claimName": pvc.claim,
                    "path": pvc.path,
                    "existingPvc": True,
                    **({"name": pvc.name} if pvc.name else {}),
                    **({"readOnly": True} if pvc.read_only else {}),
                }
                for pvc in config.pvcs
            ]
        },
        # A job runs once: whether it is tried again is decided where its failures are kept and shown.
        "backoffLimit": 0,
        "restartPolicy": "Never",
        "terminateAfterPreemption": True,
        "terminationGracePeriodSeconds": round(config.grace_s),
    }
    if gpus and config.gpu_type != "cpu":
        # NCCL and the data loaders share memory between the ranks of a node.
        spec["compute"] = {"gpuDevicesRequest": gpus // pods, "largeShmRequest": True}
    if config.node_pools:
        spec["nodePools"] = list(config.node_pools)
    request: dict[str, Any] = {
        "name": workload_name(job_name),
        "useGivenNameAsPrefix": False,
        "projectId": project.id,
        "clusterId": project.cluster_id,
        "spec": spec,
    }
    if pods == 1:
        return TRAININGS, request
    # The master trains, too: it and its workers are as many pods as there are nodes.
    spec |= {"distributedFramework": "PyTorch", "numWorkers": pods - 1}
    return DISTRIBUTED, {**request, "masterSpecSameAsWorker": True}
