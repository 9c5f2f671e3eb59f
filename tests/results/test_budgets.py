"""Budgets of GPU-hours: what counts, in which month, and who is refused; on both kinds of database."""

import multiprocessing
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy
import stored

from steptime.clusters.base import Job, JobState, JobStatus
from steptime.errors import SystemFailure
from steptime.recipes.models import Run
from steptime.results import charges, database, schema
from steptime.results.budgets import BudgetBalance, BudgetExceeded, Charge, month_bounds, month_of, times_of
from steptime.results.models import Result
from steptime.results.record import make_record
from steptime.results.store import Store
from steptime.settings import config_dir

MakeRun = Callable[..., Run]

_FORK = multiprocessing.get_context("fork")


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NOW = unix("2026-11-21 12:00")


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the file of the cluster `eos` with these lines; nothing else is configured."""
    folder = tmp_path / "config" / "clusters"
    folder.mkdir(parents=True)
    (folder.parent / "gpus.yaml").symlink_to(config_dir() / "gpus.yaml")
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder.parent))

    def write(*lines: str) -> Path:
        fixed = ("name: eos", "kind: slurm", "gpu_type: h100", "connection: eos", "work_dir: /work", *lines)
        (folder / "eos.yaml").write_text("\n".join(fixed))
        return folder / "eos.yaml"

    return write


@pytest.fixture
def store(store_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STEPTIME_STORE_URL", store_url)
    return store_url


@pytest.fixture
def make_run(make_result: Callable[..., Result]) -> MakeRun:
    """Runs on `eos` that may take as many GPU-hours as told."""

    def make(gpu_hours: int = 4, *, repeat: int = 1, account: str | None = None) -> Run:
        of_run = {"cluster": "eos", "time_limit_s": 3600, "repeat": repeat}
        options = {} if account is None else {"account": account}
        run = make_result(gpus=gpu_hours).run
        return run.model_copy(update=of_run | {"cluster_options": options})

    return make


def ended(state: JobState, started: str | None, at: str) -> JobStatus:
    return JobStatus(state=state, started_at=started and unix(started), ended_at=unix(at))  # type: ignore[arg-type]


def balance(now: float = NOW) -> BudgetBalance:
    [found] = charges.budget_balances(["eos"], now=now)
    return found


def counted(now: float = NOW) -> tuple[float, float]:
    """Used and committed."""
    found = balance(now)
    return round(found.used_gpu_hours, 6), round(found.committed_gpu_hours, 6)


def test_what_a_job_took_is_of_the_months_it_ran_in() -> None:
    def charge(started: str | None, at: str) -> Charge:
        times = {"started_at": started and unix(started), "ended_at": unix(at), "counts_until": 0}
        return Charge.model_validate(
            {"label": "a", "cluster": "eos", "account": None, "gpus": 4, "time_limit_s": 60} | times
        )

    cases = {
        ("2026-11-01 00:00", "2026-11-01 01:30"): {"2026-10": 0.0, "2026-11": 6.0, "2026-12": 0.0},
        ("2026-10-31 23:00", "2026-11-01 02:00"): {"2026-10": 4.0, "2026-11": 8.0, "2026-12": 0.0},
        ("2026-11-30 23:59", "2026-12-01 00:00"): {"2026-11": 4 / 60, "2026-12": 0.0},
        ("2026-10-31 00:00", "2026-12-02 00:00"): {"2026-10": 96.0, "2026-11": 2880.0, "2026-12": 96.0},
        ("2026-12-31 23:00", "2027-01-01 01:00"): {"2026-12": 4.0, "2027-01": 4.0},
        (None, "2026-11-05 00:00"): {"2026-11": 0.0},
    }
    wrong = {}
    for times, months in cases.items():
        taken = {month: charge(*times).used_gpu_hours(*month_bounds(month)) for month in months}
        if taken != pytest.approx(months):
            wrong[times] = taken
    assert not wrong
    unknown = charge("2026-11-01 00:00", "2026-11-01 01:30").model_copy(update={"ended_at": None})
    assert unknown.used_gpu_hours(*month_bounds("2026-11")) == 0
    limitless = unknown.model_copy(update={"time_limit_s": None, "counts_until": NOW + 1})
    assert limitless.committed_gpu_hours(NOW) == 0
    assert month_of(unix("2026-11-30 23:59")) == "2026-11"
    assert month_of(unix("2026-12-01 00:00")) == "2026-12"


def test_a_plan_is_committed_until_its_jobs_have_ended_and_counts_as_what_they_took(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    clusters("gpu_hours_per_month: 10")
    runs = [make_run(4), make_run(4, repeat=2)]
    counts = []

    for _ in ("the task", "its retry"):
        charges.commit_plan({"llama31/a": runs}, held_by="llama31/a", now=NOW)
        counts.append(counted())
    for run, job in zip(runs, ("job-1", "other-1"), strict=True):
        for _ in ("the task", "its retry"):
            charges.commit_job(run, job, dag_run="llama31/a", now=NOW)
            counts.append(counted())
    assert counts == [(0, 8)] * 6
    charges.settle_jobs(
        {
            "job-1": ended(JobState.CANCELLED, "2026-11-21 10:00", "2026-11-21 10:30"),
            "other-1": JobStatus(state=JobState.UNKNOWN),
        }
    )
    assert counted() == (2, 4), "whose end nobody knows may have taken all"
    charges.settle_jobs({"other-1": ended(JobState.CANCELLED, None, "2026-11-21 10:30")})
    assert counted() == (2, 0), "it never ran"
    with pytest.raises(BudgetExceeded):
        charges.commit_job(make_run(9), "job-2", dag_run="llama31/a", now=NOW)
    charges.commit_job(make_run(8), "job-2", dag_run="llama31/a", now=NOW)
    assert counted() == (2, 8), "an attempt more is checked by itself"
    charges.withdraw_job(make_run(8), "job-2")
    assert counted() == (2, 0)


def test_a_refusal_does_not_remove_what_an_ended_job_took(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    """A retry of `submit` may be refused, after the job that it submitted first has run and ended."""
    clusters("gpu_hours_per_month: 10")
    charges.commit_job(make_run(4), "job-1", dag_run="llama31/a", now=NOW)
    charges.settle_jobs({"job-1": ended(JobState.FAILED, "2026-11-21 10:00", "2026-11-21 10:30")})

    charges.withdraw_job(make_run(4), "job-1")

    assert counted() == (2, 0)


def test_a_plan_becomes_a_job_of_its_own_dag_run_once(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    """Another attempt of a job that may still run takes no other's commitment, and counts beside it."""
    clusters("gpu_hours_per_month: 20")
    run = make_run(4)
    for dag_run in ("llama31/a", "llama31/b"):
        charges.commit_plan({dag_run: [run]}, held_by=dag_run, now=NOW)

    charges.commit_job(run, "job-1", dag_run="llama31/a", now=NOW)
    assert counted() == (0, 8)
    charges.commit_job(run, "job-1-2", dag_run="llama31/a", now=NOW)
    assert counted() == (0, 12)

    with database.read_connection(store) as connection:
        table = schema.charges
        query = sqlalchemy.select(table.c.job_name, table.c.dag_run).order_by(table.c.dag_run, table.c.id)
        assert connection.execute(query).all() == [
            ("job-1", "llama31/a"), ("job-1-2", "llama31/a"), (None, "llama31/b"),
        ]  # fmt: skip


def test_what_a_cluster_does_before_the_training_counts(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    clusters("gpu_hours_per_month: 20", "queue_patience_h: 0.5", "node_check: {time_limit_s: 1800}")
    [asked] = charges.budget_balances(["eos"], [make_run(4)], now=NOW)
    assert asked.asked_gpu_hours == 6
    charges.commit_job(make_run(4), "job-1", dag_run="llama31/a", now=NOW)
    longest = 1800 + 3600 + 1800 + 86_400
    assert [counted(NOW + longest + more)[1] for more in (-1, 0)] == [6, 0]


def test_months_are_those_of_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        bounds = month_bounds("2026-11")
    time.tzset()
    assert bounds == (unix("2026-11-01 00:00"), unix("2026-12-01 00:00"))


def test_a_plan_that_a_budget_does_not_allow_changes_nothing_and_says_what_to_do(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    path = clusters("gpu_hours_per_month: 10")
    charges.commit_plan({"llama31/a": [make_run(4)]}, held_by="llama31/a", now=NOW)
    charges.commit_job(make_run(4), "job-1", dag_run="llama31/a", now=NOW)
    charges.settle_jobs({"job-1": ended(JobState.FAILED, "2026-10-31 23:30", "2026-11-01 00:30")})
    charges.commit_plan({"llama31/b": [make_run(5)]}, held_by="llama31/b", now=NOW)

    with pytest.raises(BudgetExceeded) as refusal:
        charges.commit_plan({"llama31/c": [make_run(4)]}, held_by="llama31/c", now=NOW)

    assert str(refusal.value) == (
        "cluster 'eos' has 10.00 GPU-hours in 2026-11: 2.00 are used and 5.00 committed to what runs or "
        "waits, so 3.00 are left, and at most 4.00 are asked for: ask for fewer GPUs or a shorter time "
        f"limit, raise gpu_hours_per_month in {path}, or wait until 2026-12-01 00:00 UTC, when the "
        "month ends."
    )
    assert counted() == (2, 5)
    charges.commit_plan({"llama31/b": [make_run(8)]}, held_by="llama31/b", now=NOW)
    assert counted() == (2, 8), "its own plan of before is replaced, and stands in nobody's way"
    with pytest.raises(BudgetExceeded):
        charges.commit_plan({"llama31/b": [make_run(9)]}, held_by="llama31/b", now=NOW)
    assert counted() == (2, 8)
    charges.withdraw_plans(["llama31/b"], ["eos"])
    assert counted() == (2, 0)


def test_what_nobody_hears_of_again_counts_for_a_time(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    clusters("gpu_hours_per_month: 10", "queue_patience_h: 240")
    day, run = 86_400, make_run(4)
    charges.commit_plan({"llama31/a": [run]}, held_by="llama31/a", now=NOW)
    assert [counted(NOW + 7 * day + more)[1] for more in (-1, 0)] == [4, 0]
    charges.commit_plan({"llama31/b": [make_run(10)]}, held_by="llama31/b", now=NOW + 8 * day)
    with pytest.raises(BudgetExceeded):  # no longer committed: checked anew
        charges.commit_job(run, "job-1", dag_run="llama31/a", now=NOW + 8 * day)
    charges.withdraw_plans(["llama31/b"], ["eos"])
    charges.commit_job(run, "job-1", dag_run="llama31/a", now=NOW + 8 * day)
    longest = 8 * day + 240 * 3600 + 3600 + day
    assert [counted(NOW + longest + more)[1] for more in (-1, 0)] == [4, 0]


def _commit(barrier: "multiprocessing.synchronize.Barrier", number: int, run: Run) -> None:
    barrier.wait(60)
    charges.commit_plan({f"llama31/{number}": [run]}, held_by=f"llama31/{number}", now=NOW)


@pytest.mark.service
def test_plans_that_begin_at_once_do_not_all_slip_through(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    clusters("gpu_hours_per_month: 10")
    balance()  # the store is made
    database.close_engines()
    barrier, run = _FORK.Barrier(6), make_run(4)
    processes = [_FORK.Process(target=_commit, args=(barrier, number, run)) for number in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)

    assert sorted(process.exitcode or 0 for process in processes) == [0, 0, 1, 1, 1, 1]
    assert counted() == (0, 8)


def test_budgets_of_accounts_stand_beside_that_of_the_cluster(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    clusters(
        "account: sites", "gpu_hours_per_month: 20", "account_gpu_hours_per_month: {sites: 8, research: 4}"
    )
    plans = {
        "llama31/a": make_run(8),
        "llama31/b": make_run(4, account="research"),
        "llama31/c": make_run(6, account="another"),
    }
    for dag_run, run in plans.items():
        charges.commit_plan({dag_run: [run]}, held_by=dag_run, now=NOW)

    found = {one.account: one.committed_gpu_hours for one in charges.budget_balances(["eos"], now=NOW)}
    assert found == {None: 18, "sites": 8, "research": 4}
    refusals = []
    for run in (make_run(1), make_run(1, account="research"), make_run(3, account="another")):
        with pytest.raises(BudgetExceeded) as refusal:
            charges.commit_plan({"llama31/d": [run]}, held_by="llama31/d", now=NOW)
        refusals.append(str(refusal.value).partition(" GPU-hours")[0])
    assert refusals == [
        "account 'sites' of cluster 'eos' has 8.00",
        "account 'research' of cluster 'eos' has 4.00",
        "cluster 'eos' has 20.00",
    ]
    charges.commit_plan({"llama31/d": [make_run(2, account="another")]}, held_by="llama31/d", now=NOW)


def test_runs_in_the_store_count_whatever_became_of_them_and_once(
    store: str, clusters: Callable[..., Path], make_run: MakeRun, make_result: Callable[..., Result]
) -> None:
    """Those of before the budget, too; a job that was replaced stands in the record of the next."""
    from steptime.results.record import EarlierAttempt
    from tests.results.test_store import BAD

    clusters()
    run = make_run(4, account="research")
    result = make_result()
    job, status = result.job, ended(JobState.SUCCEEDED, "2026-11-21 10:00", "2026-11-21 11:00")
    earlier = EarlierAttempt(
        job=job.model_copy(update={"name": "job-1"}),
        status=ended(JobState.FAILED, "2026-11-21 09:00", "2026-11-21 09:30"),
    )
    lost = EarlierAttempt(
        job=job.model_copy(update={"name": "job-0"}), status=JobStatus(state=JobState.UNKNOWN)
    )
    second = result.submitted.model_copy(
        update={"run": run, "job": job.model_copy(update={"name": "job-2"}), "attempt": 2}
    )
    record = make_record(second, status, result.log, (lost, earlier))

    def of(name: str, verdict: object, record: str = record) -> Result:
        its_job = Job.model_validate(job.model_dump() | {"name": name})
        return make_result(job=its_job, run=run, status=status, record=record, verdict=verdict)

    store_ = Store()
    stored.write(store_, of("job-2", result.verdict))
    stored.write(store_, of("job-2", BAD))
    stored.write(store_, of("job-2", result.verdict))
    stored.write(store_, of("job-3", BAD, record="{}"))

    clusters("gpu_hours_per_month: 20")
    assert counted() == (4 + 2 + 4, 0)
    with database.read_connection(store) as connection:
        query = sqlalchemy.select(schema.charges).where(schema.charges.c.job_name == "job-1")
        [row] = connection.execute(query).mappings()
    taken = {"started_at": unix("2026-11-21 09:00"), "ended_at": unix("2026-11-21 09:30")}
    whole = {
        "job_name": "job-1",
        "dag_run": "llama31/manual__2026-11-21",
        "label": run.label,
        "held_by": None,
    }
    whole |= {"cluster": "eos", "account": "research", "gpus": 4, "time_limit_s": run.time_limit_s, **taken}
    assert {key: value for key, value in row.items() if key != "id"} == whole | {
        "counts_until": taken["ended_at"]
    }


def test_a_budget_that_cannot_be_checked_refuses_and_without_one_nobody_asks(
    clusters: Callable[..., Path], make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", "postgresql://steptime@127.0.0.1:1/nowhere")
    run = make_run(4)
    calls: dict[str, Callable[[], object]] = {
        "plan": lambda: charges.commit_plan({"llama31/a": [run]}, held_by="llama31/a"),
        "job": lambda: charges.commit_job(run, "job-1", dag_run="llama31/a"),
        "look": lambda: charges.budget_balances(["eos"], [run]),
        "withdraw": lambda: charges.withdraw_plans(["llama31/a"], ["eos"]),
        "open": lambda: charges.open_commitments("eos"),
    }
    clusters()
    for call in calls.values():
        call()
    clusters("gpu_hours_per_month: 10")
    for what, call in calls.items():
        with pytest.raises(SystemFailure, match="the budget of cluster eos cannot be checked") as refusal:
            call()
        assert "127.0.0.1" in str(refusal.value), what


def test_what_is_open_is_told_of_each_cluster_alone(
    store: str, clusters: Callable[..., Path], make_run: MakeRun
) -> None:
    eos = clusters("gpu_hours_per_month: 10")
    eos.with_name("dgx.yaml").write_text(eos.read_text().replace("name: eos", "name: dgx"))
    assert [one.cluster for one in charges.budget_balances(["eos", "dgx"], now=NOW)] == ["dgx", "eos"]
    for cluster in ("eos", "dgx"):
        runs = [make_run(repeat=n).model_copy(update={"cluster": cluster}) for n in (1, 2)]
        charges.commit_plan({f"llama31/{cluster}": runs}, held_by=f"llama31/{cluster}", now=NOW)
        charges.commit_job(runs[0], f"job-{cluster}", dag_run=f"llama31/{cluster}", now=NOW)
    assert charges.open_commitments("eos") == ({"job-eos"}, {"llama31/eos"})
    charges.settle_jobs({"job-eos": ended(JobState.SUCCEEDED, "2026-11-21 10:00", "2026-11-21 11:00")})
    assert charges.open_commitments("eos") == (set(), {"llama31/eos"})
    assert charges.open_commitments("dgx") == ({"job-dgx"}, {"llama31/dgx"})


def test_looking_makes_no_store(
    tmp_path: Path, clusters: Callable[..., Path], make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path}/store/steptime.db")
    clusters("gpu_hours_per_month: 3")
    [found] = charges.budget_balances(["eos"], [make_run(4)], now=NOW)
    assert str(found) == (
        "budget: 0.00 of 3.00 GPU-hours used in 2026-11, 0.00 committed, this plan at most 4.00"
    )
    with pytest.raises(BudgetExceeded):
        found.require()
    assert not (tmp_path / "store").exists()


def test_the_schema_has_what_a_charge_has(store: str) -> None:
    with database.read_connection(store) as connection:
        columns = {column["name"] for column in sqlalchemy.inspect(connection).get_columns("charges")}
    assert columns == {column.name for column in schema.charges.columns}


TIMES: list[tuple[JobState, float | None, float | None, tuple[float | None, float] | None]] = [
    (JobState.SUCCEEDED, 10.0, 20.0, (10.0, 20.0)),
    (JobState.FAILED, 10.0, None, None),
    (JobState.CANCELLED, None, 20.0, (None, 20.0)),
    (JobState.CANCELLED, None, None, (None, 0.0)),
    (JobState.RUNNING, 10.0, None, None),
    (JobState.QUEUED, None, None, None),
    (JobState.UNKNOWN, 10.0, 20.0, None),
]


def test_what_a_job_took_is_known_once_it_has_ended() -> None:
    for state, started_at, ended_at, expected in TIMES:
        status = JobStatus(state=state, started_at=started_at, ended_at=ended_at)
        assert times_of(status) == expected, status
