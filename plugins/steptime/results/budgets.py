"""Budgets of GPU-hours by calendar month (UTC), of clusters and their accounts: how they stand.

A job that has ended counts as what it took: its GPUs × the time from its start to its end, as far as that is
in the month. What is planned, queued or running counts as the most it may take, GPUs × time limit, whole.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.config import ClusterConfig, cluster_file
from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.recipes.models import Run
from steptime.recipes.notation import format_hours

_PLANNED_COUNTS_S = 7 * 86_400
"""How long a plan counts whose DAG run is lost; a sweep may wait six days for its approval."""
_SETTLED_WITHIN_S = 86_400
"""How long after its last possible end a job counts that is lost."""
_ROUNDING = 1e-6
"""GPU-hours by which sums may differ from what they would be exactly."""


class BudgetExceeded(UserError):
    """A plan may take more GPU-hours than a budget has left in this month."""


class Charge(Frozen):
    """What one run takes of its cluster: at most, until its job has ended, and from then on what it took."""

    dag_run: str | None = None
    """`dag_id/run_id`."""
    label: str
    """The run's name: no other run of its DAG run has it."""
    cluster: str
    account: str | None
    """The run's own; None is that of the cluster's file."""
    gpus: int
    time_limit_s: int | None
    """None if only what it took is known."""
    counts_until: float
    """Unix time at which it is over, if its end is never known."""
    started_at: float | None = None
    """None, too, for a job that has ended without ever running."""
    ended_at: float | None = None

    def used_gpu_hours(self, begins: float, ends: float) -> float:
        """Return the GPU-hours that it took between two points in Unix time."""
        if self.started_at is None or self.ended_at is None:
            return 0.0
        return self.gpus * max(0.0, min(self.ended_at, ends) - max(self.started_at, begins)) / 3600

    def committed_gpu_hours(self, now: float) -> float:
        """Return the GPU-hours that it may still take, at most."""
        if self.ended_at is not None or self.counts_until <= now or self.time_limit_s is None:
            return 0.0
        return self.gpus * self.time_limit_s / 3600


class BudgetBalance(Frozen):
    """How a budget stands in the month, and what is asked of it."""

    cluster: str
    account: str | None
    """None: the budget is the whole cluster's."""
    month: str
    """`2026-11`."""
    gpu_hours_per_month: float
    used_gpu_hours: float
    committed_gpu_hours: float
    asked_gpu_hours: float

    @property
    def left_gpu_hours(self) -> float:
        """What nothing has used and nothing may use yet."""
        return max(0.0, self.gpu_hours_per_month - self.used_gpu_hours - self.committed_gpu_hours)

    def __str__(self) -> str:
        owner = "" if self.account is None else f" of account {self.account}"
        return (
            f"budget{owner}: {format_hours(self.used_gpu_hours)} of {format_hours(self.gpu_hours_per_month)} "
            f"GPU-hours used in {self.month}, {format_hours(self.committed_gpu_hours)} committed, "
            f"this plan at most {format_hours(self.asked_gpu_hours)}"
        )

    def require(self) -> None:
        """Raise BudgetExceeded if more is asked for than is left."""
        if self.asked_gpu_hours <= self.left_gpu_hours + _ROUNDING:
            return
        owner, field = f"cluster '{self.cluster}'", "gpu_hours_per_month"
        if self.account is not None:
            owner, field = f"account '{self.account}' of {owner}", "account_gpu_hours_per_month"
        raise BudgetExceeded(
            f"{owner} has {format_hours(self.gpu_hours_per_month)} GPU-hours in {self.month}: "
            f"{format_hours(self.used_gpu_hours)} are used and {format_hours(self.committed_gpu_hours)} "
            f"committed to what runs or waits, so {format_hours(self.left_gpu_hours)} are left, and at most "
            f"{format_hours(self.asked_gpu_hours)} are asked for: ask for fewer GPUs or a shorter time "
            f"limit, raise {field} in {cluster_file(self.cluster)}, or wait until "
            f"{_month(self.month)[1]:%Y-%m-%d %H:%M} UTC, when the month ends."
        )


def month_of(now: float) -> str:
    """Return the calendar month of a Unix time in UTC, `2026-11`."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m}"


def month_bounds(month: str) -> tuple[float, float]:
    """Return the Unix times at which a month begins and ends."""
    begins, ends = _month(month)
    return begins.timestamp(), ends.timestamp()


def _month(month: str) -> tuple[datetime, datetime]:
    begins = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    return begins, (begins + timedelta(days=31)).replace(day=1)


def planned_charge(run: Run, config: ClusterConfig, now: float, *, dag_run: str | None = None) -> Charge:
    """Return what a planned run may take at most."""
    return Charge(
        dag_run=dag_run,
        label=run.name,
        cluster=run.cluster,
        account=run.account,
        gpus=run.recipe.gpus,
        time_limit_s=run.time_limit_s + config.seconds_before_training,
        counts_until=now + _PLANNED_COUNTS_S,
    )


def job_charge(run: Run, config: ClusterConfig, now: float, *, dag_run: str) -> Charge:
    """Return what the job of a run may take at most; it may queue as long as its cluster's file allows."""
    charge = planned_charge(run, config, now, dag_run=dag_run)
    queued_s = 3600 * config.queue_patience_h
    last = now + queued_s + run.time_limit_s + config.seconds_before_training + _SETTLED_WITHIN_S
    return charge.model_copy(update={"counts_until": last})


def times_of(status: JobStatus) -> tuple[float | None, float] | None:
    """Return when a job started (None if it never ran) and when it ended; None if that is not known.

    A job whose end nobody knows still counts as the most that it may have taken.
    """
    if status.state.is_live or status.state is JobState.UNKNOWN:
        return None
    if status.started_at is None:
        return None, status.ended_at or 0.0
    return None if status.ended_at is None else (status.started_at, status.ended_at)


def balances_of(
    config: ClusterConfig, charges: Sequence[Charge], asked: Iterable[Charge], now: float
) -> list[BudgetBalance]:
    """Return how the budgets of a cluster stand, the whole cluster's first.

    Args:
        config: the cluster's file.
        charges: what counts there this month.
        asked: what a plan asks for there.
        now: Unix time.
    """
    month = month_of(now)
    begins, ends = month_bounds(month)
    asked = [charge for charge in asked if charge.cluster == config.name]

    def of(charges: Iterable[Charge], account: str | None) -> list[Charge]:
        return [one for one in charges if account in (None, one.account or config.default_account)]

    return [
        BudgetBalance(
            cluster=config.name,
            account=account,
            month=month,
            gpu_hours_per_month=gpu_hours,
            used_gpu_hours=sum(charge.used_gpu_hours(begins, ends) for charge in of(charges, account)),
            committed_gpu_hours=sum(charge.committed_gpu_hours(now) for charge in of(charges, account)),
            asked_gpu_hours=sum(charge.committed_gpu_hours(now) for charge in of(asked, account)),
        )
        for account, gpu_hours in config.budgets.items()
    ]
