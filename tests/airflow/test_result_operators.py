"""What the operators from a job's log to the store say and hand on."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from logs import line_forms
from own_clock import waits_over_at_once

from steptime.airflow.base import SUBMITTED_KEY
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SystemFailure
from steptime.judging.judgements import publish
from steptime.logs.models import TrainingLog
from steptime.recipes.planning import Plan
from steptime.results.models import Check, Outcome, Result, Verdict
from steptime.results.parsed_log import kept_parsed_log
from steptime.results.store import Store
from steptime.tracking import patience

from .conftest import event_of, logged, parsed, task_of, trigger_of

Submit = Callable[..., dict[str, Any]]
MakeContext = Callable[..., dict[str, Any]]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local cluster as one whose files this machine cannot open by path."""
    monkeypatch.setattr(LocalCluster, "local_path", lambda self, path: None)


def ended(submitted: dict[str, Any], make_context: MakeContext) -> dict[str, Any]:
    """The event of a submitted job's end."""
    return asyncio.run(event_of(trigger_of(submitted, make_context())))


def returned(submitted: dict[str, Any], make_context: MakeContext) -> dict[str, Any]:
    """What `parse` returns."""
    json: dict[str, Any] = task_of("performance.parse").execute(
        make_context(pushed={SUBMITTED_KEY: submitted})
    )
    return json


def read(submitted: dict[str, Any], make_context: MakeContext) -> Outcome:
    """The same with what was submitted."""
    return Outcome.model_validate(returned(submitted, make_context) | {"submitted": submitted})


def log_of(outcome: Outcome, cluster: LocalCluster) -> TrainingLog:
    return asyncio.run(kept_parsed_log(cluster, outcome.job))


def test_a_failed_warning_is_logged_as_a_warning_and_does_not_reject(
    make_context: MakeContext, make_result: Callable[..., Result], cluster: LocalCluster, tmp_path: Path
) -> None:
    noisy = parsed(make_result("noisy", step_times=[0.2, 0.6] * 10), tmp_path / "noisy", cluster)
    context = make_context(pushed={SUBMITTED_KEY: noisy["submitted"]})

    with structlog.testing.capture_logs() as said:
        judged = task_of("performance.validate", outcome=noisy).execute(context)

    assert Verdict.model_validate(judged["verdict"]).valid
    told = {line["event"]: line["log_level"] for line in said if line["event"].startswith(("✓", "!", "✗"))}
    assert len(told) == len(judged["verdict"]["checks"])
    assert {mark: level for event, level in told.items() if (mark := event[0]) != "!"} == {"✓": "info"}
    [(warning, level)] = [(event, level) for event, level in told.items() if level != "info"]
    assert level == "warning"
    assert warning.startswith("! step_times_steady: ")


@pytest.mark.usefixtures("home")
def test_the_latest_attempt_of_a_run_counts(
    planned: Callable[..., Plan], make_context: MakeContext, make_result: Callable[..., Result]
) -> None:
    context = make_context()
    report = task_of("report", plan=planned().model_dump(mode="json"))
    bad = Verdict(checks=(Check(name="x", passed=False, message="Expected one thing, but found another."),))
    begun = context["dag_run"].run_after.timestamp()
    store = Store()
    # The names stand in another order than the times.
    for name, minutes, verdict in (("b-first", 0, bad), ("c-second", 5, None), ("a-third", 9, bad)):
        run_id = context["ti"].run_id
        result = make_result(name, gpus=1, dag_run_id=run_id, submitted_at=begun + minutes, verdict=verdict)
        (store.publish if verdict is None else store.reject)(result)
        if name == "c-second":
            report.execute(context)
    with pytest.raises(AirflowFailException, match="1 of 1 planned runs have no valid result"):
        report.execute(context)


def test_a_log_out_of_reach_is_read_as_the_clusters_own(
    submission: Submit, make_context: MakeContext, home: Path, far: None, cluster: LocalCluster
) -> None:
    submitted = submission()
    ended(submitted, make_context)

    with pytest.MonkeyPatch.context() as in_reach:
        in_reach.setattr(LocalCluster, "local_path", lambda self, path: Path(path))
        there = read(submitted, make_context)
        read_there = log_of(there, cluster)
    here = read(submitted, make_context)

    assert here == there
    log = log_of(here, cluster)
    assert log == read_there
    assert log.path == submitted["job"]["log_path"], "the copy is nobody's business"
    assert [path.name for path in home.glob("logs-collected/local/*/log-*.out")] == [Path(log.path).name]


def test_parse_validate_and_report_begin_with_their_sentence(
    submission: Submit,
    make_context: MakeContext,
    planned: Callable[..., Plan],
    *,
    home: Path,
    make_result: Callable[..., Result],
) -> None:
    submitted = submission()
    ended(submitted, make_context)
    context = make_context(pushed={SUBMITTED_KEY: submitted})
    outcome: dict[str, Any] = {}
    read_log = logged(lambda: outcome.update(task_of("performance.parse").execute(context)))
    checked = logged(lambda: task_of("performance.validate", outcome=outcome).execute(context))
    publish(Store(), make_result("now", gpus=1, dag_run_id=context["ti"].run_id, submitted_at=time.time()))
    report = task_of("report", plan=planned().model_dump(mode="json"))
    reported = logged(lambda: report.execute(context))

    assert read_log[0].startswith("tiny·fp32·1: ")
    assert any(line.startswith("its record: ") for line in read_log)
    assert checked[0].startswith("tiny·fp32·1 is valid: ")
    assert reported[0].startswith("all 1 runs have valid results: tiny·fp32·1 ")


@pytest.mark.long
def test_what_tasks_hand_on_does_not_grow_with_the_steps(
    submission: Submit, make_context: MakeContext, cluster: LocalCluster, home: Path
) -> None:
    submitted = submission()
    ended(submitted, make_context)
    few = returned(submitted, make_context)
    Path(submitted["job"]["log_path"]).write_bytes(line_forms.nemo2_log(range(2000)))

    many = returned(submitted, make_context)

    assert max(len(json.dumps(one)) for one in (few, many)) < 2_000
    assert "steps" not in many
    with pytest.raises(AirflowFailException):  # the log ends other than planned
        task_of("performance.validate", outcome=many).execute(make_context(pushed={SUBMITTED_KEY: submitted}))
    assert len(Store().steps(submitted["job"]["name"])) == 2000


def test_a_reading_that_is_gone_says_what_writes_it_anew(
    make_context: MakeContext, make_result: Callable[..., Result], cluster: LocalCluster, tmp_path: Path
) -> None:
    outcome = parsed(make_result("gone"), tmp_path / "gone", cluster)
    context = make_context(pushed={SUBMITTED_KEY: outcome["submitted"]})
    (tmp_path / "gone" / "steps.jsonl").write_text("torn {")

    with pytest.raises(AirflowException, match=r"steps.jsonl .* clear the task 'parse'"):
        task_of("performance.validate", outcome=outcome).execute(context)


def test_a_failure_out_of_reach_is_explained(
    submission: Submit, make_context: MakeContext, far: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted, context = submission(STAND_IN="out_of_memory"), make_context()
    event = ended(submitted, make_context)

    with structlog.testing.capture_logs() as said, pytest.raises(AirflowFailException) as failed:
        task_of("performance.wait", submitted=submitted).execute_complete(context, event)

    assert "out of memory" in str(failed.value)
    assert submitted["job"]["log_path"] in str(failed.value)
    [tail] = [line["event"] for line in said if line["log_level"] == "error"]
    assert "CUDA out of memory. Tried to allocate 20.00 GiB." in tail


@pytest.mark.usefixtures("far")
def test_a_log_that_cannot_be_read_is_tried_again_until_the_clusters_patience_is_over(
    submission: Submit,
    make_context: MakeContext,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: LocalCluster,
) -> None:
    submitted = submission()
    ended(submitted, make_context)
    reading = LocalCluster.read
    failures = iter(range(2))

    async def broken(self: LocalCluster, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        if offset and next(failures, None) is not None:
            raise SystemFailure("Permission denied")
        return await reading(self, path, offset, 5_000)

    monkeypatch.setattr(LocalCluster, "read", broken)
    pauses = waits_over_at_once(monkeypatch, patience)
    with structlog.testing.capture_logs() as said:
        outcome = read(submitted, make_context)
    assert len(log_of(outcome, cluster).steps) == 20
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
