"""Monthly budgets of GPU-hours (UTC) for clusters, computed from the job ledger.

An ended job counts with its GPUs × its run time within the month. A planned, queued or running job counts
with the most it may take: GPUs × time limit, even if that reaches into the next month.

A plan is checked and reserved in one transaction, so of two plans at the same time the second sees the first.
Each planned run is a row of `jobs` with attempt 0, which the run's first job replaces. Later tasks load the
plan from it. As long as it has no end time, it also reserves GPU-hours.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import bindparam, or_, select
from sqlalchemy.engine import Connection

from steptime.clusters.base import JobState
from steptime.clusters.config import ClusterConfig, load_cluster
from steptime.durations import WEEK_S
from steptime.errors import SystemFailure, UserError
from steptime.frozen import Frozen
from steptime.recipes.cluster_files import cluster_file
from steptime.recipes.models import Run
from steptime.recipes.notation import format_hours
from steptime.settings import store_url
from steptime.store.database import database_exists, lock, read_connection, write_transaction
from steptime.store.run_models import LedgerPlan
from steptime.store.schema import jobs

_PLANNED_COUNTS_S = WEEK_S
"""How long a reservation counts if its DAG run is lost; a sweep may wait six days for approval."""
_SETTLED_WITHIN_S = 86_400
"""How long a lost job counts after the latest time at which it can have ended."""
_ROUNDING = 1e-6
"""Tolerance for rounding errors of sums, in GPU-hours."""


class BudgetExceeded(UserError):
    """A plan may take more GPU-hours than its cluster's budget has left this month."""


class Owner(NamedTuple):
    """The DAG run of an Airflow installation that reserves GPU-hours and submits jobs."""

    installation_id: str
    dag_id: str
    dag_run_id: str


class BudgetBalance(Frozen):
    """A monthly budget of GPU-hours: its size, what is used and committed, and what a plan requests."""

    cluster: str
    month: str
    """Month, such as `2026-11`."""
    gpu_hours_per_month: float
    used_gpu_hours: float
    committed_gpu_hours: float
    asked_gpu_hours: float

    @property
    def left_gpu_hours(self) -> float:
        """GPU-hours that are neither used nor committed."""
        return max(0.0, self.gpu_hours_per_month - self.used_gpu_hours - self.committed_gpu_hours)

    def __str__(self) -> str:
        return (
            f"budget: {format_hours(self.used_gpu_hours)} of {format_hours(self.gpu_hours_per_month)} "
            f"GPU-hours used in {self.month}, {format_hours(self.committed_gpu_hours)} committed, "
            f"this plan at most {format_hours(self.asked_gpu_hours)}"
        )

    def require(self) -> None:
        """Raise BudgetExceeded if the plan requests more GPU-hours than the budget has left."""
        if self.asked_gpu_hours <= self.left_gpu_hours + _ROUNDING:
            return
        raise BudgetExceeded(
            f"cluster '{self.cluster}' has {format_hours(self.gpu_hours_per_month)} GPU-hours in "
            f"{self.month}: {format_hours(self.used_gpu_hours)} are used and "
            f"{format_hours(self.committed_gpu_hours)} committed to other jobs, "
            f"so {format_hours(self.left_gpu_hours)} are left, and this plan may take "
            f"{format_hours(self.asked_gpu_hours)}: request fewer GPUs or a shorter time limit, raise "
            f"gpu_hours_per_month in {cluster_file(self.cluster)}, or wait until "
            f"{_month(self.month)[1]:%Y-%m-%d %H:%M} UTC, when the month ends."
        )


def format_month(now: float) -> str:
    """Return the calendar month of a Unix time in UTC, as in `2026-11`."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m}"


def month_bounds(month: str) -> tuple[float, float]:
    """Return the Unix times at which a month such as `2026-11` begins and ends in UTC."""
    begins, ends = _month(month)
    return begins.timestamp(), ends.timestamp()


def _month(month: str) -> tuple[datetime, datetime]:
    begins = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    return begins, (begins + timedelta(days=31)).replace(day=1)


def budget_balances(
    clusters: Iterable[str], runs: Sequence[Run] = (), *, now: float | None = None
) -> list[BudgetBalance]:
    """Return this month's budgets of clusters, with what `runs` may take from them.

    Empty if no cluster has a budget. Nothing is written. Raises UserError if a cluster's file has a mistake,
    SystemFailure if the store fails.
    """
    now = time.time() if now is None else now
    configs = _with_budget(clusters)
    requested = [
        _planned_row(run, config, now) for config in configs for run in runs if run.cluster == config.name
    ]
    if not configs or not database_exists(store_url()):
        return _balances(configs, (), requested, now)
    try:
        with read_connection(store_url()) as connection:
            return _balances(configs, _rows(connection, configs, now), requested, now)
    except SystemFailure as error:
        names = " and ".join(config.name for config in configs)
        raise SystemFailure(f"the budget of cluster {names} cannot be checked: {error}") from error


def store_plan(
    owner: Owner, planned: Sequence[LedgerPlan], *, now: float | None = None
) -> list[BudgetBalance]:
    """Store what a DAG run has planned, and reserve its GPU-hours; return the budgets as they stood before.

    Runs that do not reserve any count from when their job is submitted.
    Runs that the DAG run planned before under the same names are replaced, and its earlier reservations are
    released. Raises BudgetExceeded, in which case nothing changes, or SystemFailure if the store fails.
    """
    now = time.time() if now is None else now
    clusters = {name: load_cluster(name) for name in sorted({plan.run.cluster for plan in planned})}
    with_budget = [config for config in clusters.values() if config.gpu_hours_per_month is not None]
    rows = [
        {
            **_planned_row(plan.run, clusters[plan.run.cluster], now),
            **owner._asdict(),
            "name": _name(owner, plan.run.name),
            **plan.model_dump(mode="json", include={"run", "request"}),
            "provenance": plan.model_dump(mode="json", include={"options", "sweep"}),
            "ended_at": None if plan.reserves else now,
        }
        for plan in planned
    ]
    with write_transaction(store_url()) as connection:
        if with_budget:
            lock(connection, "budgets")
        _release(connection, owner, now)
        connection.execute(
            jobs.delete().where(jobs.c.name == bindparam("planned")),
            [{"planned": row["name"]} for row in rows],
        )
        balances = _balances(with_budget, _rows(connection, with_budget, now), rows, now)
        for balance in balances:
            balance.require()
        connection.execute(jobs.insert(), rows)
    return balances


def admit(connection: Connection, owner: Owner, run: Run, *, now: float) -> None:
    """Check that the budgets have room for a job, and delete the row of its plan.

    Call it in the transaction that inserts the job, whose row takes the place of the plan's. Raises
    BudgetExceeded if a budget does not have enough left.
    """
    configs = _with_budget([run.cluster])
    if configs:
        lock(connection, "budgets")
    connection.execute(jobs.delete().where(jobs.c.name == _name(owner, run.name)))
    requested = [_planned_row(run, config, now) for config in configs]
    for balance in _balances(configs, _rows(connection, configs, now), requested, now):
        balance.require()


def live_beyond_limit_s(config: ClusterConfig) -> float:
    """Return how many seconds beyond its time limit a job may live: its time in the queue, and a day.

    A job whose end is unknown counts as live until then.
    """
    return 3600 * config.queue_patience_h + _SETTLED_WITHIN_S


def release(owner: Owner) -> None:
    """Release the GPU-hours that a DAG run has reserved for jobs that it has not submitted; keep its plan."""
    with write_transaction(store_url()) as connection:
        _release(connection, owner, time.time())


def release_run(owner: Owner, name: str) -> None:
    """Release the GPU-hours that a DAG run has reserved for its planned run `name`; keep the plan."""
    of_run = jobs.c.name == _name(owner, name)
    with write_transaction(store_url()) as connection:
        connection.execute(jobs.update().where(*_RESERVES, of_run).values(ended_at=time.time()))


def _release(connection: Connection, owner: Owner, now: float) -> None:
    of_owner = [jobs.c[name] == value for name, value in owner._asdict().items()]
    connection.execute(jobs.update().where(*_RESERVES, *of_owner).values(ended_at=now))


def list_reserving(installation_id: str, clusters: Iterable[str]) -> list[Owner]:
    """Return the DAG runs of one Airflow installation that hold reservations on these clusters."""
    query = select(jobs.c.installation_id, jobs.c.dag_id, jobs.c.dag_run_id).distinct()
    of_installation = jobs.c.installation_id == installation_id
    with read_connection(store_url()) as connection:
        rows = connection.execute(
            query.where(*_RESERVES, of_installation, jobs.c.cluster.in_(list(clusters)))
        )
        return [Owner(*row) for row in rows]


def _with_budget(clusters: Iterable[str]) -> list[ClusterConfig]:
    return [
        config
        for config in map(load_cluster, sorted(set(clusters)))
        if config.gpu_hours_per_month is not None
    ]


def _planned_row(run: Run, config: ClusterConfig, now: float) -> dict[str, Any]:
    """Return the columns of a planned run on its cluster that budgets count."""
    return {
        "cell": run.name,
        "cluster": config.name,
        "gpus": run.recipe.gpus,
        "time_limit_s": run.time_limit_s + config.seconds_before_training,
        "attempt": 0,
        "state": JobState.UNKNOWN.value,
        "created_at": now,
        "started_at": None,
        "ended_at": None,
    }


def _name(owner: Owner, run: str) -> str:
    """Return the key of a planned run; it has a space, which no job's name has."""
    return f"planned by {'/'.join(owner)}/{run}"


_RESERVES = (jobs.c.attempt == 0, jobs.c.ended_at.is_(None))
"""Conditions of planned runs that reserve GPU-hours."""


def _rows(connection: Connection, configs: Sequence[ClusterConfig], now: float) -> list[Mapping[str, Any]]:
    """Return the jobs and reservations that count this month on these clusters."""
    names = ("cluster", "gpus", "time_limit_s", "attempt", "created_at", "started_at", "ended_at")
    counts = or_(jobs.c.ended_at.is_(None), jobs.c.ended_at > month_bounds(format_month(now))[0])
    here = jobs.c.cluster.in_([config.name for config in configs])
    query = select(*(jobs.c[name] for name in names)).where(here, counts)
    return [dict(row) for row in connection.execute(query).mappings()]


def _balances(
    configs: Sequence[ClusterConfig],
    rows: Sequence[Mapping[str, Any]],
    requested: Sequence[Mapping[str, Any]],
    now: float,
) -> list[BudgetBalance]:
    """Return the budget of each cluster that has one."""
    month = format_month(now)
    begins, ends = month_bounds(month)

    def used(row: Mapping[str, Any]) -> float:
        if row["started_at"] is None or row["ended_at"] is None:
            return 0.0
        seconds: float = min(row["ended_at"], ends) - max(row["started_at"], begins)
        return int(row["gpus"]) * max(0.0, seconds) / 3600

    def committed(row: Mapping[str, Any], config: ClusterConfig) -> float:
        lasts_s = _PLANNED_COUNTS_S
        if row["attempt"]:
            lasts_s = row["time_limit_s"] + live_beyond_limit_s(config)
        is_over = row["ended_at"] is not None or row["created_at"] + lasts_s <= now
        return 0.0 if is_over else int(row["gpus"]) * int(row["time_limit_s"]) / 3600

    def committed_sum(rows: Sequence[Mapping[str, Any]], config: ClusterConfig) -> float:
        return sum(committed(row, config) for row in rows if row["cluster"] == config.name)

    return [
        BudgetBalance(
            cluster=config.name,
            month=month,
            gpu_hours_per_month=config.gpu_hours_per_month,
            used_gpu_hours=sum(used(row) for row in rows if row["cluster"] == config.name),
            committed_gpu_hours=committed_sum(rows, config),
            asked_gpu_hours=committed_sum(requested, config),
        )
        for config in configs
        if config.gpu_hours_per_month is not None
    ]
