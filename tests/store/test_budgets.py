"""Budgets of GPU-hours: what counts, in which month, and which plans are refused; on both databases."""

import multiprocessing
from collections import Counter
from datetime import UTC, datetime

import pytest
from stored import as_planned
from sync_ledger import ledger

from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.config import load_cluster
from steptime.errors import SystemFailure
from steptime.settings import config_dir
from steptime.store import database
from steptime.store.budgets import (
    BudgetExceeded,
    Owner,
    budget_balances,
    format_month,
    list_reserving,
    release,
    release_run,
    store_plan,
)
from steptime.store.ledger import TaskKey

from .conftest import OURS

_FORK = multiprocessing.get_context("fork")


def reserve(owner, runs, *, now=None):
    return store_plan(owner, [as_planned(run) for run in runs], now=now)


def unix(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


NOW = unix("2026-11-21 12:00")


@pytest.fixture
def clusters(tmp_path, monkeypatch):
    """Return a function that writes the file of the only cluster, `eos`, with these lines."""
    folder = tmp_path / "config" / "clusters"
    folder.mkdir(parents=True)
    (folder.parent / "gpus.yaml").symlink_to(config_dir() / "gpus.yaml")
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder.parent))

    def write(*lines):
        fixed = ("name: eos", "kind: slurm", "gpu_type: h100", "connection: eos", "work_dir: /work", *lines)
        (folder / "eos.yaml").write_text("\n".join(fixed))
        return folder / "eos.yaml"

    return write


@pytest.fixture
def make_run(make_result):
    """Return a function that makes a run on `eos` that may take this many GPU-hours."""

    def make(gpu_hours=4, *, repeat=1):
        of_run = {"cluster": "eos", "time_limit_s": 3600, "repeat": repeat}
        run = make_result(gpus=gpu_hours).run
        return run.model_copy(update=of_run | {"cluster_options": {}})

    return make


@pytest.fixture
def submit(ledger_job):
    """Return a function that adds a job to the ledger if the budget has room."""

    def submit(run, name, dag_run, now):
        before_training = load_cluster(run.cluster).seconds_before_training
        fields = {"run": run, "cell": run.name, "cluster": run.cluster, "account": run.account}
        limit = {"gpus": run.recipe.gpus, "time_limit_s": run.time_limit_s + before_training}
        job = ledger_job(name, dag_run_id=dag_run, created_at=now, **fields, **limit)
        ledger.add(job)

    return submit


def of(dag_run):
    return Owner(OURS.id, "steptime_llama3.1-25.04", dag_run)


def ended(state, started, at):
    return JobStatus(state=state, started_at=started and unix(started), ended_at=unix(at))  # type: ignore[arg-type]


def balance(now=NOW):
    [of_eos] = budget_balances(["eos"], now=now)
    return of_eos


def counted(now=NOW):
    """Return the used and the committed GPU-hours."""
    budget = balance(now)
    return round(budget.used_gpu_hours, 6), round(budget.committed_gpu_hours, 6)


@pytest.mark.long
def test_what_a_job_took_is_of_the_months_it_ran_in(store, clusters, make_run, submit):
    clusters("gpu_hours_per_month: 10000")
    cases = {
        ("2026-11-01 00:00", "2026-11-01 01:30"): {"2026-10": 0.0, "2026-11": 6.0, "2026-12": 0.0},
        ("2026-10-31 23:00", "2026-11-01 02:00"): {"2026-10": 4.0, "2026-11": 8.0, "2026-12": 0.0},
        ("2026-11-30 23:59", "2026-12-01 00:00"): {"2026-11": 4 / 60, "2026-12": 0.0},
        ("2026-10-31 00:00", "2026-12-02 00:00"): {"2026-10": 96.0, "2026-11": 2880.0, "2026-12": 96.0},
        ("2026-12-31 23:00", "2027-01-01 01:00"): {"2026-12": 4.0, "2027-01": 4.0},
        (None, "2026-11-05 00:00"): {"2026-11": 0.0},
    }
    expected = Counter()
    for number, ((started, at), months) in enumerate(cases.items()):
        submit(make_run(4), f"job-{number}", str(number), NOW)
        ledger.store_status(f"job-{number}", ended(JobState.SUCCEEDED, started, at), NOW)
        expected.update(months)  # type: ignore[arg-type]
        used = {month: balance(unix(f"{month}-02 12:00")).used_gpu_hours for month in expected}
        assert used == pytest.approx(expected), (started, at)
    assert format_month(unix("2026-11-30 23:59")) == "2026-11"
    assert format_month(unix("2026-12-01 00:00")) == "2026-12"


def test_a_plan_is_reserved_until_its_jobs_have_ended_and_counts_as_what_they_took(
    store, clusters, make_run, submit
):
    clusters("gpu_hours_per_month: 10")
    runs = [make_run(4), make_run(4, repeat=2)]
    counts = []

    for _ in ("the task", "its retry"):
        reserve(of("a"), runs, now=NOW)
        counts.append(counted())
    for run, job in zip(runs, ("job-1", "other-1"), strict=True):
        submit(run, job, "a", NOW)
        counts.append(counted())
    assert counts == [(0, 8)] * 4
    ledger.store_status("job-1", ended(JobState.CANCELLED, "2026-11-21 10:00", "2026-11-21 10:30"), NOW)
    ledger.store_status("other-1", JobStatus(state=JobState.UNKNOWN), NOW)
    assert counted() == (2, 4), "whose end nobody knows may have taken all"
    ledger.store_status("other-1", ended(JobState.CANCELLED, None, "2026-11-21 10:30"), NOW)
    assert counted() == (2, 0), "it never ran"
    with pytest.raises(BudgetExceeded):
        submit(make_run(9), "job-2", "a", NOW)
    assert ledger.find("job-2") is None
    submit(make_run(8), "job-2", "a", NOW)
    assert counted() == (2, 8), "an attempt more is checked by itself"


def test_planned_runs_that_reserve_nothing_keep_their_plan_and_a_reservation_can_be_released_alone(
    store, clusters, make_run
):
    """A trial reserves its first rounds only, and gives back those of a variant that has left."""
    clusters("gpu_hours_per_month: 10")
    owner = of("a")
    runs = [make_run(4, repeat=number) for number in (1, 2, 3)]
    reserve(owner, runs[:1], now=NOW)
    _, committed_by_each = counted()
    release(owner)
    planned = [as_planned(run).model_copy(update={"reserves": number < 2}) for number, run in enumerate(runs)]
    store_plan(owner, planned, now=NOW)
    assert counted() == (0, 2 * committed_by_each)
    key = TaskKey(
        installations=(owner.installation_id,),
        dag_id=owner.dag_id,
        dag_run_id=owner.dag_run_id,
        task_group="performance",
        map_index=0,
    )
    assert set(ledger.planned_runs(key)) == {run.name for run in runs}
    release_run(owner, runs[0].name)
    assert counted() == (0, committed_by_each)
    assert set(ledger.planned_runs(key)) == {run.name for run in runs}


def test_a_job_uses_up_the_reservation_of_its_own_run(store, clusters, make_run, submit):
    """A second attempt of a job that may still run takes no other reservation, and counts in addition."""
    clusters("gpu_hours_per_month: 20")
    run = make_run(4)
    for dag_run in ("a", "b"):
        reserve(of(dag_run), [run], now=NOW)

    submit(run, "job-1", "a", NOW)
    assert counted() == (0, 8)
    submit(run, "job-1-2", "a", NOW)
    assert counted() == (0, 12)
    assert list_reserving(OURS.id, ["eos"]) == [of("b")]
    assert list_reserving("another", ["eos"]) == list_reserving(OURS.id, ["dgx"]) == []
    assert [job.name for job in ledger.open_jobs("eos")] == ["job-1", "job-1-2"]


def test_what_a_cluster_does_before_the_training_counts(store, clusters, make_run, submit):
    clusters("gpu_hours_per_month: 20", "queue_patience_h: 0.5", "node_check: {time_limit_s: 1800}")
    [asked] = budget_balances(["eos"], [make_run(4)], now=NOW)
    assert asked.asked_gpu_hours == 6
    submit(make_run(4), "job-1", "a", NOW)
    longest = 1800 + 3600 + 1800 + 86_400
    assert [counted(NOW + longest + more)[1] for more in (-1, 0)] == [6, 0]


def test_a_plan_that_a_budget_does_not_allow_changes_nothing_and_says_what_to_do(
    store, clusters, make_run, submit
):
    path = clusters("gpu_hours_per_month: 10")
    reserve(of("a"), [make_run(4)], now=NOW)
    submit(make_run(4), "job-1", "a", NOW)
    ledger.store_status("job-1", ended(JobState.FAILED, "2026-10-31 23:30", "2026-11-01 00:30"), NOW)
    reserve(of("b"), [make_run(5)], now=NOW)

    with pytest.raises(BudgetExceeded) as refusal:
        reserve(of("c"), [make_run(4)], now=NOW)

    assert str(refusal.value) == (
        "cluster 'eos' has 10.00 GPU-hours in 2026-11: 2.00 are used and 5.00 committed to other jobs, "
        "so 3.00 are left, and this plan may take 4.00: request fewer GPUs or a shorter time "
        f"limit, raise gpu_hours_per_month in {path}, or wait until 2026-12-01 00:00 UTC, when the "
        "month ends."
    )
    assert counted() == (2, 5)
    reserve(of("b"), [make_run(8)], now=NOW)
    assert counted() == (2, 8), "its own plan of before is replaced, and stands in nobody's way"
    with pytest.raises(BudgetExceeded):
        reserve(of("b"), [make_run(9)], now=NOW)
    assert counted() == (2, 8)
    release(of("b"))
    assert counted() == (2, 0)


def test_what_nobody_hears_of_again_counts_for_a_time(store, clusters, make_run, submit):
    clusters("gpu_hours_per_month: 10", "queue_patience_h: 240")
    day, run = 86_400, make_run(4)
    reserve(of("a"), [run], now=NOW)
    assert [counted(NOW + 7 * day + more)[1] for more in (-1, 0)] == [4, 0]
    reserve(of("b"), [make_run(10)], now=NOW + 8 * day)
    with pytest.raises(BudgetExceeded):  # no longer committed, so checked again
        submit(run, "job-1", "a", NOW + 8 * day)
    release(of("b"))
    submit(run, "job-1", "a", NOW + 8 * day)
    longest = 8 * day + 240 * 3600 + 3600 + day
    assert [counted(NOW + longest + more)[1] for more in (-1, 0)] == [4, 0]


def _commit(barrier, number, run):
    barrier.wait(60)
    reserve(of(str(number)), [run], now=NOW)


@pytest.mark.service
def test_plans_that_begin_at_once_do_not_all_slip_through(store, clusters, make_run):
    clusters("gpu_hours_per_month: 10")
    balance()  # creates the store
    database.close_engines()
    barrier, run = _FORK.Barrier(6), make_run(4)
    processes = [_FORK.Process(target=_commit, args=(barrier, number, run)) for number in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)

    assert sorted(process.exitcode or 0 for process in processes) == [0, 0, 1, 1, 1, 1]
    assert counted() == (0, 8)


def test_each_budget_counts_the_runs_of_its_own_cluster(clusters, make_run):
    file = clusters("gpu_hours_per_month: 10")
    text = file.read_text()
    file.with_name("dgx.yaml").write_text(text.replace("name: eos", "name: dgx").replace(": 10", ": 20"))
    elsewhere = make_run(8).model_copy(update={"cluster": "dgx"})
    found = budget_balances(["eos", "dgx"], [make_run(4), elsewhere, elsewhere], now=NOW)
    assert {(one.cluster, one.gpu_hours_per_month, round(one.asked_gpu_hours, 3)) for one in found} == {
        ("eos", 10, 4.0),
        ("dgx", 20, 16.0),
    }


def test_a_budget_that_cannot_be_checked_refuses_and_without_one_nobody_asks(clusters, make_run, monkeypatch):
    """The plan itself is stored with and without a budget."""
    monkeypatch.setenv("STEPTIME_STORE_URL", "postgresql://steptime@127.0.0.1:1/nowhere")
    clusters()
    assert budget_balances(["eos"], [make_run(4)]) == []
    with pytest.raises(SystemFailure, match=r"127\.0\.0\.1"):
        reserve(of("a"), [make_run(4)])
    clusters("gpu_hours_per_month: 10")
    with pytest.raises(SystemFailure, match=r"127\.0\.0\.1"):
        budget_balances(["eos"], [make_run(4)])
