"""What the metrics store keeps of budgets: a row for each run that is planned, and for each job.

A plan is checked and written down in one transaction, so that of two that begin at once the second sees the
first. Its rows become those of its jobs as these are submitted, and what a job took as it ends. Nothing here
asks the store if no cluster has a budget.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from steptime.clusters.base import JobStatus
from steptime.clusters.config import ClusterConfig, load_cluster
from steptime.errors import SystemFailure
from steptime.recipes.models import Run
from steptime.results.budgets import (
    BudgetBalance,
    Charge,
    balances_of,
    job_charge,
    month_bounds,
    month_of,
    planned_charge,
    times_of,
)
from steptime.results.database import exists, insert, read_connection, write_transaction
from steptime.settings import store_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection


def budget_balances(
    clusters: Iterable[str], runs: Sequence[Run] = (), *, now: float | None = None
) -> list[BudgetBalance]:
    """Return how the budgets of clusters stand and what runs ask of them; none if no cluster has one.

    Nothing is written. Raises UserError for a cluster's file that is broken, SystemFailure if the store
    cannot be asked.
    """
    now = time.time() if now is None else now
    configs = _with_budget(clusters)
    if not configs:
        return []
    if not exists(store_url()):
        return [one for config in configs for one in balances_of(config, (), _asked(configs, runs, now), now)]
    with _needed(configs), read_connection(store_url()) as connection:
        return _balances(connection, configs, _asked(configs, runs, now), now)


def commit_plan(
    runs: Mapping[str, Sequence[Run]], *, held_by: str, now: float | None = None
) -> list[BudgetBalance]:
    """Refuse a plan that a budget does not allow, or commit it: one transaction.

    What was committed before for these DAG runs, and by this one, is replaced.

    Args:
        runs: what is planned, by the DAG run (`dag_id/run_id`) that will submit it.
        held_by: the DAG run that plans it, whose end takes back what was not submitted.
        now: Unix time.

    Raises:
        BudgetExceeded: nothing is changed.
        SystemFailure: the store cannot be asked.
    """
    from sqlalchemy import or_

    from steptime.results.schema import charges as table

    now = time.time() if now is None else now
    configs = _with_budget({run.cluster for planned in runs.values() for run in planned})
    if not configs:
        return []
    asked = [one for dag_run, planned in runs.items() for one in _asked(configs, planned, now, dag_run)]
    with _needed(configs), write_transaction(store_url()) as connection:
        _lock(connection)
        own = or_(table.c.held_by == held_by, table.c.dag_run.in_(list(runs)))
        connection.execute(table.delete().where(table.c.job_name.is_(None), own))
        balances = _balances(connection, configs, asked, now)
        for balance in balances:
            balance.require()
        connection.execute(table.insert(), [one.model_dump() | {"held_by": held_by} for one in asked])
    return balances


def commit_job(run: Run, job_name: str, *, dag_run: str, now: float | None = None) -> None:
    """Commit a job that is to be submitted: out of its plan's commitment, or else by a check of its own.

    A job that is committed already stays as it is, so that a retry may call this again. Raises as
    `commit_plan`.
    """
    from sqlalchemy import select

    from steptime.results.schema import charges as table

    now = time.time() if now is None else now
    configs = _with_budget([run.cluster])
    if not configs:
        return
    charge = job_charge(run, configs[0], now, dag_run=dag_run)
    with _needed(configs), write_transaction(store_url()) as connection:
        _lock(connection)
        if connection.scalar(select(table.c.id).where(table.c.job_name == job_name)) is not None:
            return
        its_plan = (table.c.job_name.is_(None), table.c.dag_run == dag_run, table.c.label == run.name)
        planned = connection.execute(table.delete().where(*its_plan, table.c.counts_until > now))
        if not planned.rowcount:
            for balance in _balances(connection, configs, [charge], now):
                balance.require()
        connection.execute(table.insert().values(charge.model_dump() | {"job_name": job_name}))


def withdraw_job(run: Run, job_name: str) -> None:
    """Take back what was committed for a job that its cluster refused."""
    from steptime.results.schema import charges as table

    if configs := _with_budget([run.cluster]):
        with _needed(configs), write_transaction(store_url()) as connection:
            connection.execute(table.delete().where(table.c.job_name == job_name, table.c.ended_at.is_(None)))


def withdraw_plans(held_by: Iterable[str], clusters: Iterable[str]) -> None:
    """Take back what DAG runs hold on clusters for jobs that were never submitted."""
    from steptime.results.schema import charges as table

    if configs := _with_budget(clusters):
        with _needed(configs), write_transaction(store_url()) as connection:
            own = table.c.held_by.in_(list(held_by))
            connection.execute(table.delete().where(table.c.job_name.is_(None), own))


def open_commitments(cluster: str) -> tuple[set[str], set[str]]:
    """Return the jobs on a cluster whose end is not known yet, and the DAG runs that hold plans there."""
    from sqlalchemy import select

    from steptime.results.schema import charges as table

    if not (configs := _with_budget([cluster])):
        return set(), set()
    query = select(table.c.job_name, table.c.held_by).where(
        table.c.cluster == cluster, table.c.ended_at.is_(None)
    )
    with _needed(configs), read_connection(store_url()) as connection:
        rows = connection.execute(query).all()
    return {row.job_name for row in rows if row.job_name}, {row.held_by for row in rows if not row.job_name}


def settle_jobs(statuses: Mapping[str, JobStatus]) -> None:
    """Put what jobs took in the place of what they might have taken; those that have not ended stay."""
    from steptime.results.schema import charges as table

    with write_transaction(store_url()) as connection:
        for name, status in statuses.items():
            if (times := times_of(status)) is not None:
                committed = table.update().where(table.c.job_name == name, table.c.ended_at.is_(None))
                connection.execute(committed.values(started_at=times[0], ended_at=times[1]))


def write_taken(
    connection: "Connection", run: Run, statuses: Mapping[str, JobStatus], *, dag_run: str | None
) -> None:
    """Write down, budget or not, what the jobs of a run took: a budget may be set in the midst of a month."""
    from steptime.results.schema import charges as table

    of_run = {
        "dag_run": dag_run,
        "label": run.name,
        "cluster": run.cluster,
        "account": run.account,
        "gpus": run.recipe.gpus,
        "time_limit_s": run.time_limit_s,
    }
    for name, status in statuses.items():
        if (times := times_of(status)) is None:
            continue
        taken = {"started_at": times[0], "ended_at": times[1]}
        row = {"job_name": name, **of_run, **taken, "counts_until": times[1]}
        added = insert(connection.dialect.name, table).values(row)
        connection.execute(added.on_conflict_do_update(index_elements=[table.c.job_name], set_=taken))


def _with_budget(clusters: Iterable[str]) -> list[ClusterConfig]:
    return [config for config in map(load_cluster, sorted(set(clusters))) if config.budgets]


def _asked(
    configs: Sequence[ClusterConfig], runs: Sequence[Run], now: float, dag_run: str | None = None
) -> list[Charge]:
    by_name = {config.name: config for config in configs}
    return [
        planned_charge(run, by_name[run.cluster], now, dag_run=dag_run)
        for run in runs
        if run.cluster in by_name
    ]


def _balances(
    connection: "Connection", configs: Sequence[ClusterConfig], asked: Sequence[Charge], now: float
) -> list[BudgetBalance]:
    from sqlalchemy import or_, select

    from steptime.results.schema import charges as table

    begins, _ = month_bounds(month_of(now))
    columns = [table.c[name] for name in Charge.model_fields]
    found = []
    for config in configs:
        query = select(*columns).where(
            table.c.cluster == config.name, or_(table.c.ended_at.is_(None), table.c.ended_at > begins)
        )
        rows = [Charge.model_validate(dict(row)) for row in connection.execute(query).mappings()]
        found += balances_of(config, rows, asked, now)
    return found


def _lock(connection: "Connection") -> None:
    """Let one at a time check and commit; SQLite has one writer at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE charges IN EXCLUSIVE MODE")


@contextmanager
def _needed(configs: Sequence[ClusterConfig]) -> "Iterator[None]":
    """Explain why the store is needed if it fails."""
    try:
        yield
    except SystemFailure as error:
        names = " and ".join(config.name for config in configs)
        raise SystemFailure(
            f"the budget of cluster {names} cannot be checked, and nothing is submitted unchecked: {error}"
        ) from error
