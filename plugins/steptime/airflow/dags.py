"""The DAGs that a team has. One file with two lines in the folder of DAGs makes all of them:

    from steptime.airflow.dags import make_dags

    make_dags()

The process of a task reads that file, too, and makes the DAG of its task only. This is a border for imports:
what builds a DAG is imported when that DAG is made, so that a task does not wait for the libraries of others.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from airflow.sdk import get_parsing_context

from steptime import dag_ids
from steptime.recipes.cluster_files import list_clusters, read_cluster_file
from steptime.recipes.config_files import load_each
from steptime.recipes.sweeps import list_sweeps
from steptime.recipes.workload_file import Workload
from steptime.recipes.workloads import list_workloads, load_workloads, workload_name

SCHEDULED_SWEEPS = MappingProxyType({"weekly": "0 6 * * 1", "nodes": "0 2 * * 6"})
"""By the name of a sweep, when it starts by itself, in UTC: Mondays at 06:00 and Saturdays at 02:00."""


def make_dags(workloads: Collection[str] | None = None, *, sweeps: Mapping[str, str] | None = None) -> None:
    """Make the DAGs of this team; Airflow finds them when it reads the DAG file that calls this.

    There is one for each workload, `steptime_sweep` and `steptime_trial` for any sweep and trial on demand,
    one for each sweep with a schedule, `steptime_cluster_check` and `steptime_send_report`. A workload whose
    file has mistakes has none: see `report_broken_files`.

    Args:
        workloads: names of workloads that have a DAG; a family's name means its default release. None for all
            that one of the configured clusters has GPUs (or CPUs) for. While the file of a cluster has a
            mistake, this leaves none out.
        sweeps: by the name of a sweep, the cron expression in UTC of its own DAG. None for those of
            `SCHEDULED_SWEEPS` that the team has a file of.

    Raises UserError if there is no workload of that name.
    """
    current = get_parsing_context().dag_id
    for dag_id, make in _makers(workloads, sweeps, current).items():
        if current in (None, dag_id):
            make(dag_id)


def report_broken_files() -> None:
    """Raise UserError with the mistakes in the files of `config/`; do nothing if there are none.

    In a DAG file of its own, this is an import error in Airflow's UI. Airflow does not run the DAGs of a file
    that has an import error, so it cannot be the file that calls `make_dags`.
    """
    from steptime.airflow.notifications import broken_notifications
    from steptime.measure.step_checks import step_limits
    from steptime.staging.checking import check_config_files

    _, broken_limits = load_each(("steps",), lambda _: step_limits())
    check_config_files(broken_limits, broken_notifications())


def _makers(
    workloads: Collection[str] | None, sweeps: Mapping[str, str] | None, current: str | None
) -> Mapping[str, Callable[[str], Any]]:
    """Return functions that make a DAG from its id, by that id; of workloads only what `current` needs."""
    if sweeps is None:  # a task goes on although its sweep's file has since been removed
        written = SCHEDULED_SWEEPS if current is not None else list_sweeps()
        sweeps = {name: cron for name, cron in SCHEDULED_SWEEPS.items() if name in written}
    makers: dict[str, Callable[[str], Any]] = {
        dag_ids.SWEEP: _sweep_dag,
        dag_ids.TRIAL: _trial_dag,
        dag_ids.CLUSTER_CHECK: _cluster_check_dag,
        dag_ids.SEND_REPORT: _send_report_dag,
        **{dag_ids.scheduled_sweep(name): partial(_sweep_dag, name, cron) for name, cron in sweeps.items()},
    }
    if current in makers:
        return makers
    if current is None:
        names = [workload.workload for workload in _chosen(workloads)]
    else:  # a task goes on although the team has since left its workload out
        names = [name for name in list_workloads() if dag_ids.dag_id(name) == current]
    return makers | {dag_ids.dag_id(name): partial(_training_dag, name) for name in names}


def _chosen(names: Collection[str] | None) -> list[Workload]:
    """Return the workloads that have a DAG and can be read. Raises UserError for an unknown name."""
    readable, _ = load_workloads()
    if names is not None:
        chosen = {workload_name(name) for name in names}
        return [workload for workload in readable if workload.workload in chosen]
    clusters, broken = load_each(list_clusters(), read_cluster_file)
    gpu_types = {cluster.gpu_type for cluster in clusters}
    return [workload for workload in readable if broken is not None or gpu_types & workload.gpu_types.keys()]


def _training_dag(workload: str, dag_id: str) -> None:
    from steptime.airflow.dag_builder import training_dag

    training_dag(dag_id, workload=workload)


def _sweep_dag(*arguments: str) -> None:
    from steptime.airflow.sweep.dag import sweep_dag

    *scheduled, dag_id = arguments
    weekly = "weekly" if "weekly" in list_sweeps() else "example-weekly"
    sweep, cron = scheduled or (weekly, None)
    sweep_dag(dag_id, sweep=sweep, cron=cron)


def _trial_dag(dag_id: str) -> None:
    from steptime.airflow.sweep.trial_dag import trial_dag

    trial_dag(dag_id)


def _cluster_check_dag(dag_id: str) -> None:
    from steptime.airflow.cluster_check import cluster_check_dag

    cluster_check_dag(dag_id)


def _send_report_dag(dag_id: str) -> None:
    from steptime.airflow.send_report import send_report_dag

    send_report_dag(dag_id)
