"""What the operators from `parse` to `report` log and pass on."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import stored
import structlog
from airflow.sdk.exceptions import AirflowFailException
from logs import line_forms
from own_clock import waits_over_at_once
from sync_ledger import ledger

from steptime.airflow.assets import published_results
from steptime.airflow.base import task_key
from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SystemFailure
from steptime.judging.judgements import run_writer
from steptime.logs.training_log import Network
from steptime.measure.record import make_record
from steptime.runs import patience
from steptime.store.run_models import Check, Submission, Verdict
from steptime.store.run_queries import Store
from steptime.store.run_records import EarlierAttempt

from .conftest import (
    event_of,
    logged,
    names_of,
    task_of,
    trigger_of,
)

pytestmark = pytest.mark.long


@pytest.fixture
def far(monkeypatch):
    """Make the local cluster one whose files this machine cannot open by path."""
    monkeypatch.setattr(LocalCluster, "local_path", lambda self, path: None)


def ended(submitted, make_context):
    """Return the event of a submitted job's end."""
    return asyncio.run(event_of(trigger_of(submitted, make_context())))


def parse(submitted, make_context):
    """Run `parse`; return its handle."""
    return task_of("performance.parse").execute(make_context(submitted=submitted))


def read(submitted, make_context):
    """Run `parse`; return the result it stores."""
    return Store().measured(parse(submitted, make_context)["job"])


@pytest.mark.usefixtures("home")
def test_the_latest_attempt_of_a_run_counts(planned, make_context, make_result):
    context = make_context()
    report = task_of("report", plan=names_of(planned()))
    bad = Verdict(checks=(Check(name="x", passed=False, message="Expected one thing, but found another."),))
    begun = context["dag_run"].run_after.timestamp()
    store = Store()
    # The names sort in another order than the times.
    for name, minutes, verdict in (("b-first", 0, bad), ("c-second", 5, None), ("a-third", 9, bad)):
        run_id = context["ti"].run_id
        result = make_result(name, gpus=1, dag_run_id=run_id, submitted_at=begun + minutes, verdict=verdict)
        stored.write(store, result)
        if name == "c-second":
            report.execute(context)
    with pytest.raises(AirflowFailException, match="1 of 1 planned runs have no valid result"):
        report.execute(context)


def test_a_log_out_of_reach_is_read_as_the_clusters_own(submission, make_context, home, far):
    submitted = submission()
    ended(submitted, make_context)

    with pytest.MonkeyPatch.context() as in_reach:
        in_reach.setattr(LocalCluster, "local_path", lambda self, path: Path(path))
        there = read(submitted, make_context)
    here = read(submitted, make_context)

    assert here == there
    log = here.log
    assert log.path == submitted["job"]["log_path"], "the copy is nobody's business"
    assert [path.name for path in home.glob("logs-collected/local/*/log-*.out")] == [Path(log.path).name]


def test_a_fallback_to_sockets_is_rejected_by_the_fabric_of_its_clusters_file(
    home, make_context, make_result
):
    file = home.parent / "config" / "clusters" / "local.yaml"
    file.write_text(f"{file.read_text()}fabric: InfiniBand\n")
    plain = make_result()
    recipe = plain.run.recipe.model_copy(update={"gpu_type": "h100", "gpus_per_node": 1})
    network = Network(names=("Socket",), nodes=1, socket_nodes=("gb-017",))
    result = make_result(
        run=plain.run.model_copy(update={"recipe": recipe}),
        log=plain.log.model_copy(update={"network": network}),
    )
    lost = EarlierAttempt(job=result.job, status=JobStatus(state=JobState.FAILED, reason="NODE_FAIL"))
    record = make_record(result.submitted, result.status, result.log, (lost,))
    run_writer(Store()).store_measurement(result.model_copy(update={"record": record}))
    handle = {"cluster": "local", "job": result.job.name}
    with pytest.raises(AirflowFailException, match=r"fabric_used: .* fell back to sockets on gb-017$"):
        task_of("performance.validate", handle=handle).execute(make_context())
    (row,) = Store().results(include_rejected=True)
    assert (row["state"], row["network"]) == ("rejected", "Socket")
    checks = {check["name"]: check["message"] for check in Store().checks(result.job.name)}
    assert "this is attempt 2" in checks["first_attempt"]


def test_a_run_becomes_a_result_when_it_is_published(submission, make_context, home):
    """Running the tasks again, as Airflow does if a person clears them, changes nothing."""
    submitted = submission()
    ended(submitted, make_context)
    job = submitted["job"]["name"]
    asset = published_results("llama3.1")
    before = []
    for turn in range(2):
        handle = {}
        [said, *_] = logged(lambda handle=handle: handle.update(parse(submitted, make_context)))
        assert re.match(r"tiny·fp32·1: [\d.]+ s a step in steps 10:19, 20 steps in its log", said)
        assert handle == {"cluster": "local", "job": job}
        assert Store().results(include_rejected=True) == before
        validate = task_of("performance.validate", handle=handle)
        [said, *_] = logged(lambda validate=validate: validate.execute(make_context()))
        assert said.startswith("tiny·fp32·1 is valid: ")
        assert Store().results(include_rejected=True) == before
        context = make_context() | {"outlet_events": {asset: SimpleNamespace(extra={})}}
        assert task_of("performance.publish", handle=handle).execute(context) == handle
        [row] = Store().results()
        assert (row["job_name"], row["state"]) == (job, "valid")
        assert turn == 0 or before == [row], "the time when it was published included"
        before = [row]


def test_only_a_checkpoint_below_the_folder_of_the_job_that_saved_it_is_removed(
    submission, make_context, home, tmp_path
):
    """A run's path could come from a damaged row, or be that of a checkpoint that a person named."""
    submitted = submission()
    ended(submitted, make_context)
    run = Submission.model_validate(submitted).run
    own_folder = Path(submitted["job"]["directory"])
    folder = own_folder / "code/nemo_experiments/default/checkpoints"
    others = [
        tmp_path / "of-somebody",
        own_folder.parent / "of-another-job" / folder.relative_to(own_folder) / "step",
    ]
    for path in (folder / "step", *others):
        (path / "weights").mkdir(parents=True)
    publish = task_of("checkpoint.load.publish", handle={})
    saving = task_key(make_context(), "performance")
    refused = [
        *others,
        own_folder,
        folder / ".." / "checkpoints" / "step",
        Path(f"{folder}-x"),
        Path("/"),
        None,
    ]
    for path in refused:
        loading = run.model_copy(update={"checkpoint_path": None if path is None else str(path)})
        publish._remove_checkpoint(loading, saving)
    assert all((path / "weights").is_dir() for path in (folder / "step", *others))

    [job] = ledger.jobs_of_task(saving)
    second = {"name": f"{job.name}-2", "attempt": 2, "directory": str(tmp_path / "second")}
    ledger.add(job.model_copy(update=second))
    assert len(ledger.jobs_of_task(saving)) == 2
    publish._remove_checkpoint(run.model_copy(update={"checkpoint_path": str(folder / "step")}), saving)

    assert not (folder / "step").exists()
    assert folder.is_dir()
    assert all((path / "weights").is_dir() for path in others)


def test_a_log_that_has_changed_replaces_the_result_once_it_is_checked_again(submission, make_context, home):
    submitted = submission()
    ended(submitted, make_context)
    handle = parse(submitted, make_context)
    task_of("performance.validate", handle=handle).execute(make_context())
    run_writer(Store()).publish(handle["job"])
    Path(submitted["job"]["log_path"]).write_bytes(line_forms.nemo2_log(range(200)))

    assert parse(submitted, make_context) == handle
    assert Store().results(include_rejected=True) == []
    with pytest.raises(AirflowFailException, match=r"is rejected and not published: .*[^.]$"):
        task_of("performance.validate", handle=handle).execute(make_context())

    [row] = Store().results(include_rejected=True)
    assert row["state"] == "rejected"
    assert len(Store().steps(handle["job"])) == 200


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("task_id", ["performance.validate", "performance.publish"])
def test_a_run_that_the_store_has_lost_is_to_be_read_again(task_id, make_context):
    task = task_of(task_id, handle={"cluster": "local", "job": "lost"})
    with pytest.raises(AirflowFailException, match="no run 'lost': clear the task 'parse'"):
        task.execute(make_context())


@pytest.mark.usefixtures("far")
def test_a_log_that_cannot_be_read_is_tried_again_until_the_clusters_patience_is_over(
    submission, make_context, home, monkeypatch
):
    submitted = submission()
    ended(submitted, make_context)
    reading = LocalCluster.read
    failures = iter(range(2))

    async def broken(self, path, offset=0, limit=1 << 20):
        if offset and next(failures, None) is not None:
            raise SystemFailure("Permission denied")
        return await reading(self, path, offset, 5_000)

    monkeypatch.setattr(LocalCluster, "read", broken)
    pauses = waits_over_at_once(monkeypatch, patience)
    with structlog.testing.capture_logs() as said:
        outcome = read(submitted, make_context)
    assert len(outcome.log.steps) == 20
    assert [line["event"] for line in said if "out of reach" in line["event"]] != []
    assert pauses == [1, 2]

    failures = iter(range(1_000))
    for copy in home.glob("logs-collected/local/*/log-*.out"):
        copy.unlink()
    file = home.parent / "config" / "clusters" / "local.yaml"
    file.write_text(f"{file.read_text()}patience_h: 0.0001\n")
    with pytest.raises(AirflowFailException, match="patience_h in its file allows 0 s: Permission denied"):
        read(submitted, make_context)
    assert pauses == [1, 2, 1], "the first pause is longer than that patience"
