"""Identify this Airflow installation, so that it never ends another installation's jobs.

A production and a staging Airflow may share a cluster's folder and account, and have DAG runs of the same id.
The id is in the key of an Airflow Variable, and so in Airflow's database: scheduler, triggerers and workers
have the same one on all their machines, for as long as that database lasts.

Airflow has no atomic operation that sets a Variable only if it is missing. So if the first two tasks run at
the same instant, each may create an id. As the id is in the key, neither overwrites the other: both ids
remain valid for this installation, and later tasks use the smaller one.
"""

import uuid
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from steptime.airflow.links import base_address
from steptime.airflow.versions import Variable
from steptime.clusters.base import Installation, Job
from steptime.errors import SystemFailure, UserError
from steptime.store.run_queries import Store
from steptime.store.run_records import parse_record

KEY_PREFIX = "steptime_installation_"
_DESCRIPTION = (
    "Its key is in the names of this Airflow's jobs, and sets them apart from another Airflow's. Keep it; "
    "delete it in a copy of this database before the copy is started."
)


def this_installation() -> Installation:
    """Return the Airflow installation of this task; create its id if it has none yet."""
    address = base_address() or "an Airflow without base_url"
    if not own_ids():
        Variable.set(f"{KEY_PREFIX}{uuid.uuid4().hex}", address, description=_DESCRIPTION)
    return Installation(id=min(own_ids()), address=address)


def is_this(installation: Installation) -> bool:
    """Return whether `installation` is the Airflow that runs this task or trigger."""
    return installation.id in own_ids()


def is_own(job: Job) -> bool:
    """Return whether a job belongs to this installation; a job without an installation counts as its own."""
    return job.installation is None or is_this(job.installation)


def require_own(job: Job) -> None:
    """Raise UserError if a job belongs to another installation."""
    if not is_own(job):
        raise UserError(
            f"job '{job.name}' (id {job.job_id}) on cluster '{job.cluster}' belongs to another Airflow with "
            f"steptime, {job.installation}, and is left alone: if that Airflow is gone for good, end the "
            "job by hand; to train here, clear this task."
        )


def own_runs(store: Store, dag_id: str, dag_run_id: str) -> list[dict[str, Any]]:
    """Return the store's runs of a DAG run of this Airflow, without those of other Airflows.

    Another Airflow may share the store and have a DAG run with the same id.
    """
    rows = store.list_runs(dag_id, dag_run_id)
    records = store.records([row["job_name"] for row in rows])
    jobs = {
        job_name: record.job
        for job_name, content in records.items()
        if (record := parse_record(content)) is not None
    }
    return [row for row in rows if (job := jobs.get(row["job_name"])) is None or is_own(job)]


def own_ids() -> list[str]:
    """Return this Airflow's installation ids, from its database: normally one.

    There are several if the first tasks ran at the same instant. Raises SystemFailure if the database fails.
    """
    try:
        return [key.removeprefix(KEY_PREFIX) for key in Variable.keys(prefix=KEY_PREFIX)]
    except AirflowRuntimeError as error:
        raise SystemFailure(f"Airflow did not list its Variables: {error}") from None
