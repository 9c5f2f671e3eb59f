"""The DAG that checks a cluster from the UI: `steptime cluster check` as a task."""

import asyncio
from typing import Any

from airflow.sdk import DAG, Context, Param

from steptime.airflow.base import RefusingOperator
from steptime.airflow.connections import airflow_connection
from steptime.clusters.checks import CheckOutcome, CheckResult
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.recipes.cluster_files import list_clusters
from steptime.recipes.workloads import list_workloads
from steptime.settings import default_cluster
from steptime.staging.cluster_check import check_cluster, runs_to_check

_DOCUMENTATION = """
Checks that a cluster's file fits the cluster: the login, the scheduler, GPUs, `work_dir`, Python, containers
and images. Nothing is submitted. The log of the task has a line for each check, ✓ or ✗ with what to do, and
the task fails if one fails. `steptime cluster check` does the same in a shell.
"""


class CheckClusterOperator(RefusingOperator):
    """Checks the cluster that the DAG run's params name; fails if a check fails."""

    ui_color: str = "#eef3e2"

    def execute(self, context: Context) -> None:
        """Run the checks, and log a line for each; fails if a check fails."""
        params: dict[str, Any] = {**context["params"]}
        with self.refusals(context):
            config = load_cluster(params["cluster"])
            runs = runs_to_check(config, params.get("workload") or None)
            outcomes = asyncio.run(check_cluster(config, airflow_connection, runs, self._report))
            failed = [outcome.check for outcome in outcomes if outcome.result is CheckResult.FAILED]
            if failed:
                raise UserError(
                    f"cluster {config.name} failed {len(failed)} of {len(outcomes)} checks: "
                    f"{', '.join(failed)}. The lines above say what to do."
                )

    def _report(self, outcome: CheckOutcome) -> None:
        log = self.log.error if outcome.result is CheckResult.FAILED else self.log.info
        log("%s", outcome)


def cluster_check_dag(dag_id: str) -> DAG:
    """Build the manually started DAG that checks one cluster."""
    with DAG(
        dag_id=dag_id,
        description="Check that a cluster can be used",
        doc_md=_DOCUMENTATION,
        schedule=None,
        params={
            "cluster": Param(
                default_cluster(),
                type="string",
                # No enum: a file that was written since Airflow read this one can be named at once.
                examples=sorted({default_cluster(), *list_clusters()}),
                title="Cluster",
                description="A file of config/clusters.",
            ),
            "workload": Param(
                None,
                type=["null", "string"],
                examples=list(list_workloads()),
                title="Workload",
                description="Check only what this one needs; by default what the recipes for the cluster's "
                "type of GPU need.",
            ),
        },
        tags=["steptime", "cluster"],
    ) as dag:
        CheckClusterOperator(task_id="check_cluster")
    return dag
