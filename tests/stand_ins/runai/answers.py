"""Descriptions of workloads in Run:ai's two forms."""

from typing import TYPE_CHECKING, Any

from stand_ins.runai.workloads import StandInWorkload, written

if TYPE_CHECKING:
    from stand_ins.runai.server import RunaiStandIn

_KUBERNETES_PHASES = {"Completed": "Succeeded", "Failed": "Failed", "Running": "Running"}


def details(workload: StandInWorkload) -> dict[str, Any]:
    """Return a workload as `GET /workloads/<kind>/<id>` does, and as the answer to making it."""
    return {
        "name": workload.name,
        "requestedName": workload.name,
        "workloadId": workload.id,
        "projectId": workload.request["projectId"],
        "clusterId": workload.request["clusterId"],
        "createdBy": "steptime-tests",
        "createdAt": written(workload.created_at),
        "deletedAt": None,
        "desiredPhase": workload.desired,
        "actualPhase": workload.phase,
        "spec": workload.spec,
        **({"masterSpecSameAsWorker": True} if workload.distributed else {}),
    }


def listed(stand_in: "RunaiStandIn", workload: StandInWorkload) -> dict[str, Any]:
    """Return a workload as lists and `GET /workloads/<id>` do."""
    changed = written(workload.phase_at)
    return {
        "tenantId": 1001,
        "runningPods": workload.running_pods,
        "phaseUpdatedAt": changed,
        "k8sPhaseUpdatedAt": changed,
        "updatedAt": changed,
        "source": "Control-plane",
        "deletedAt": written(workload.deleted_at) if workload.deleted_at else None,
        "type": "Distributed" if workload.distributed else "Training",
        "name": workload.name,
        "id": workload.id,
        "priority": 40,
        "priorityClassName": "low",
        "submittedBy": stand_in.application,
        "clusterId": stand_in.cluster_id,
        "projectName": stand_in.project,
        "projectId": stand_in.project_id,
        "departmentName": "default",
        "departmentId": "2",
        "namespace": f"runai-{stand_in.project}",
        "createdAt": written(workload.created_at),
        "phase": workload.phase,
        "conditions": [],
        "phaseMessage": workload.phase_message,
        "k8sPhase": _KUBERNETES_PHASES.get(workload.phase, "Pending"),
        "completedAt": written(workload.completed_at) if workload.completed_at else None,
        "requestedPods": {"number": workload.pods},
        "images": [workload.spec["image"]],
        "preemptible": True,
        "category": "Train",
        **({"distributedFramework": "Pytorch"} if workload.distributed else {}),
    }
