"""The metrics store on SQLite and on a real PostgreSQL: nothing is stored twice, in part, or with secrets."""

import hashlib
import json
import math
from dataclasses import asdict, replace

import pytest
import stored

from steptime.errors import UserError
from steptime.logs.training_log import Problem
from steptime.measure.record import format_record
from steptime.recipes.models import Mode
from steptime.store import judgement_queries
from steptime.store.columns import CHOICES, COLUMNS
from steptime.store.database import read_connection, write_transaction
from steptime.store.judgement_queries import (
    latest_rows_with_judgements,
    newest_of_each,
    rows_with_judgements,
)
from steptime.store.run_models import Check, Result, Verdict
from steptime.store.run_queries import Store

BAD = Verdict(
    checks=(
        Check(name="job_succeeded", passed=True, message="The job succeeded."),
        Check(name="losses_finite", passed=False, message="Expected finite losses, but found nan at step 3."),
        Check(name="window_complete", passed=False, message="Expected steps 10 to 19, but 12 is missing."),
    )
)
# The keys that the UI, the command line and `steptime parse` have in common.


def test_a_published_run_comes_back_whole(store_url, make_result):
    result = make_result(mode=Mode.CHECKPOINT_SAVE)
    measurement = result.measurement
    assert measurement is not None
    store = Store(store_url)
    assert stored.write(store, result)
    row = store.run(result.job.name)

    assert list(row) == [column.name for column in COLUMNS]
    assert store.results() == [row]
    assert row["state"] == "valid"
    assert row["reason"] is None
    assert row["step_time_mean_s"] == measurement.step_time_mean_s, "to the last digit"
    assert row["mfu_percent"] == measurement.mfu_percent
    assert (row["checkpoint_save_s"], row["checkpoint_blocked_s"]) == (0.946, 0.146)
    assert row["queue_wait_s"] == 1.5
    assert row["window"] == "10:19"
    steps = store.steps(result.job.name)
    assert steps == [asdict(step) for step in result.log.steps]
    assert store.checkpoints(result.job.name) == [
        checkpoint.model_dump() for checkpoint in result.log.checkpoints
    ]
    assert store.checks(result.job.name) == [check.model_dump() for check in result.verdict.checks]
    sha256 = hashlib.sha256(result.record.encode()).hexdigest()
    assert store.record(result.job.name) == {"content": result.record, "sha256": sha256}


def test_a_record_is_kept_as_it_was_first(store_url, make_result):
    first = make_result()
    later = make_result(
        status=first.status.model_copy(update={"nodes": ("elsewhere",)}),
        log=first.log.model_copy(update={"bytes_read": 9000}),
    )
    assert later.record != first.record
    store = Store(store_url)
    stored.write(store, first)

    assert stored.write(store, later), "what was read of the run is replaced"

    assert store.record(first.job.name)["content"] == first.record
    assert store.parsed_log(first.job.name)["log"]["bytes_read"] == 9000


def test_a_measured_run_is_read_whole_and_is_no_result_until_it_is_published(store_url, make_result):
    saved = make_result("saved", mode=Mode.CHECKPOINT_SAVE)
    first, second = saved.log.steps[:2]
    odd = (replace(first, loss=math.nan, step_time_s=math.inf), replace(second, tflops_per_gpu=-math.inf))
    result = saved.model_copy(
        update={"log": saved.log.model_copy(update={"steps": (*odd, *saved.log.steps[2:])})}
    )
    store, reader = Store(store_url), Store(store_url, dags=["steptime_llama3.1-25.04"])
    stored.write(store, make_result("result"))
    before = _what_readers_see(store), _what_readers_see(reader)

    assert stored.unjudged_writer(store_url).store_measurement(result)

    measured = store.measured("saved")
    assert repr(measured) == repr(Result.model_validate(result.model_dump(exclude={"verdict"}))), (
        "NaN included"
    )
    assert (_what_readers_see(store), _what_readers_see(reader)) == before
    assert stored.unjudged_writer(store_url).store_verdict("saved", result.verdict)
    assert (_what_readers_see(store), _what_readers_see(reader)) == before
    with pytest.raises(UserError, match="there is no run 'saved'"):
        store.run("saved")
    assert stored.unjudged_writer(store_url).publish("saved")
    assert store.run("saved")["state"] == "valid"
    with pytest.raises(UserError, match="the metrics store has no run 'lost': clear the task 'parse'"):
        store.measured("lost")


def _what_readers_see(store):
    with read_connection(store.url) as connection:
        judged_by = judgement_queries.read_runs(connection, {}, ["step_time_mean_s", "checkpoint_save_s"])
    return [
        store.results(include_rejected=True),
        store.results(include_rejected=True, in_reading_order=True),
        store.count(include_rejected=True),
        store.choices(),
        store.list_runs("steptime_llama3.1-25.04", "manual__2026-11-21"),
        store.records(["saved", "result"]).keys(),
        store.step_times(["saved", "result"]).keys(),
        store.run_times({}, 9),
        store.measured_together(limit=9),
        store.run_named("last"),
        [row["job_name"] for row in judged_by],
        rows_with_judgements(store, {}),
        latest_rows_with_judgements(store, 0, 9),
        newest_of_each(store),
        judgement_queries.hidden(Store(store.url, dags=[])),
    ]


def test_a_run_is_found_by_the_beginning_of_its_name_where_that_is_unique(store_url, make_result):
    store = Store(store_url)
    for name in ("run-10", "run-11", "run_2"):
        stored.write(store, make_result(name))
    stored.write(store, make_result("run-1", verdict=BAD, submitted_at=2e9))

    assert store.run_named("run-10")["job_name"] == "run-10"
    assert store.run_named("run-1")["job_name"] == "run-1", "a whole name is no beginning of others"
    assert store.run_named("last")["job_name"] == "run-1", "rejected, and the newest"
    assert store.run_named("run_")["job_name"] == "run_2", "an underscore is no wildcard"
    with pytest.raises(UserError, match=r"'run-' begins the names of 3 runs \(run-1, run-10, run-11\)"):
        store.run_named("run-")
    with pytest.raises(UserError, match=r"no run 'RUN-10' in the metrics store"):
        store.run_named("RUN-10")


def test_publishing_twice_is_publishing_once(store_url, make_result):
    store = Store(store_url)

    assert stored.write(store, make_result())
    before = store.results()
    assert not stored.write(store, make_result())

    assert store.results() == before, "the time of publishing included"
    assert len(store.steps(before[0]["job_name"])) == 20


def test_what_was_read_anew_replaces_the_run_whole(store_url, make_result):
    store = Store(store_url)
    stored.write(store, make_result(verdict=BAD, max_steps=40))
    stored.write(store, make_result(max_steps=20))

    (row,) = store.results(include_rejected=True)
    assert (row["state"], row["reason"], row["window"]) == ("valid", None, "10:19")
    assert len(store.steps(row["job_name"])) == 20
    assert len(store.checks(row["job_name"])) == 1


def test_a_rejected_run_is_kept_apart_with_its_reason(store_url, make_result):
    store = Store(store_url)
    rejected = make_result("bad", verdict=BAD, measurement=None)

    assert stored.write(store, rejected)
    assert not stored.write(store, rejected)

    assert store.results() == []
    (row,) = store.results(include_rejected=True)
    assert row["state"] == "rejected"
    assert row["reason"] == (
        "Expected finite losses, but found nan at step 3. Expected steps 10 to 19, but 12 is missing."
    )
    assert row["tokens_per_s"] is None
    assert [check["name"] for check in store.checks("bad") if not check["passed"]] == [
        "losses_finite",
        "window_complete",
    ]


def test_only_valid_runs_that_were_measured_are_published(store_url, make_result):
    store = Store(store_url)
    stored.unjudged_writer(store_url).store_measurement(make_result("new"))
    with pytest.raises(UserError, match="new cannot be published: it is measured, not valid"):
        stored.unjudged_writer(store_url).publish("new")
    stored.write(store, make_result("bad", verdict=BAD))
    with pytest.raises(UserError, match=r"it is rejected, not valid\. Expected finite losses"):
        stored.unjudged_writer(store_url).publish("bad")
    with pytest.raises(UserError, match="it has no step times"):
        stored.write(store, make_result("empty", measurement=None))
    assert store.results() == []


def test_runs_are_found_by_what_they_are(store_url, make_result):
    store = Store(store_url)
    for number, (size, gpus) in enumerate([("tiny", 1), ("tiny", 2), ("tiny", 4), ("small", 2)]):
        stored.write(
            store,
            make_result(
                f"job{number}", size=size, gpus=gpus, submitted_at=1000.0 + number, map_index=3 - number
            ),
        )
    stored.write(store, make_result("job4", dag_run_id="other", verdict=BAD, submitted_at=2000.0))

    def names(**filters):
        return [row["job_name"] for row in store.results(**filters)]

    assert names() == ["job3", "job2", "job1", "job0"], "the latest first"
    assert names(size="tiny", gpus=2) == ["job1"]
    assert names(since=1002.0) == ["job3", "job2"]
    assert names(limit=1) == ["job3"]
    assert names(workload="llama3.1-25.04", size=None, mode="profile") == []
    assert names(include_rejected=True, limit=1) == ["job4"]
    assert names(job_name="job2") == ["job2"]
    assert [row["job_name"] for row in store.list_runs("steptime_llama3.1-25.04", "manual__2026-11-21")] == [
        "job3", "job2", "job1", "job0",
    ]  # fmt: skip
    assert [row["state"] for row in store.list_runs("steptime_llama3.1-25.04", "other")] == ["rejected"]
    assert tuple(store.choices()) == CHOICES
    assert store.choices()["size"] == ["small", "tiny"]
    assert store.choices()["gpus"] == [1, 2, 4]
    assert store.choices(size="tiny")["state"] == ["rejected", "valid"]
    assert store.choices(size="small")["gpus"] == store.choices(size="small", mode=None)["gpus"] == [2]


def test_runs_are_found_by_what_they_ran_with(store_url, make_result):
    store = Store(store_url)
    for name, image, nccl, nodes, environment in (
        ("old", "nvcr.io/nvidia/nemo:25.11.01", "2.9.1", ["h008", "h0081"], {"NCCL_ALGO": "Ring"}),
        ("new", "nvcr.io/nvidia/nemo:26.02.01", "2.28.9", ["h0081"], {"NCCL_ALGO": "Ring_100%"}),
    ):
        plain = make_result(name, environment=environment)
        record = json.loads(plain.record) | {"nodes": nodes}
        record["versions"] |= {"nccl": nccl, "nvidia_driver": "570.86.15"}
        record["provenance"]["staged"] |= {"image": image}
        stored.write(store, make_result(name, environment=environment, record=format_record(record)))

    def names(**filters):
        return [row["job_name"] for row in store.results(**filters)]

    assert names(image="nvcr.io/nvidia/nemo:26.02.01") == names(nccl="2.28.9") == ["new"]
    assert set(names(nvidia_driver="570.86.15")) == set(names(node="h0081")) == {"old", "new"}
    assert names(node="h008") == names(variable="NCCL_ALGO=Ring") == ["old"], "no beginnings of names"
    assert names(variable="NCCL_ALGO=Ring_100%") == ["new"]
    assert names(version="nccl 2.9.1") == ["old"]
    assert names(node="h0%") == names(node="h00_1") == [], "no patterns"
    assert store.count(node="h008") == 1
    for words in ("nemo:26.02.01", "2.28.9", "NCCL_ALGO=Ring_100%"):
        assert names(search=words) == ["new"]
    assert names(search="h008 570.86") == names(search="nccl_algo h0081")
    assert store.choices()["nccl"] == ["2.9.1", "2.28.9"]
    assert store.run("old")["versions"].endswith("python 3.11.7, nccl 2.9.1, nvidia_driver 570.86.15")


@pytest.mark.long
def test_a_search_finds_words_in_the_texts_that_runs_are_known_by(store_url, make_result):
    store = Store(store_url)
    stored.write(store, make_result("job_1", size="tiny"))
    stored.write(store, make_result("Other", size="small", dag_run_id="tuesday", submitted_at=1.0))

    def found(search):
        listed = [row["job_name"] for row in store.results(search=search)]
        assert store.count(search=search) == len(listed)
        return listed

    assert found("OTHER") == ["Other"], "capitals are small letters"
    assert found("JOB LLAMA3") == ["job_1"], "each word, each in any text"
    assert found("b_1") == ["job_1"]
    assert found("o%r") == found("jobx1") == [], "what LIKE reads as any text is itself here"
    assert found("") == found(" ") == ["job_1", "Other"], "no word is in all"
    row = store.run("job_1")
    for name in ("label", "job_name", "dag_run_id"):
        assert found(row[name]) == ["job_1"], name
    for name in ("workload", "gpu_type", "cluster", "dag_id", "state"):
        assert found(row[name]) == ["job_1", "Other"], name


def test_rows_in_reading_order_are_those_of_the_results(store_url, make_result):
    store = Store(store_url)
    for name, gpus, mode, submitted_at in [
        ("again", 1, Mode.PERFORMANCE, 1004.0),  # published first and submitted last
        ("save", 2, Mode.CHECKPOINT_SAVE, 1000.0),
        ("four", 4, Mode.PERFORMANCE, 1001.0),
        ("one", 1, Mode.PERFORMANCE, 1002.0),
        ("load", 2, Mode.CHECKPOINT_LOAD, 1003.0),
    ]:
        stored.write(store, make_result(name, gpus=gpus, mode=mode, submitted_at=submitted_at))
    stored.write(store, make_result("other", size="small", gpus=1, submitted_at=1002.5))
    stored.write(store, make_result("bad", gpus=1, verdict=BAD, submitted_at=3000.0))

    def names(**filters):
        rows = list(store.results(in_reading_order=True, **filters))
        assert all(row in store.results(**filters) for row in rows)
        return [row["job_name"] for row in rows]

    assert names() == ["other", "one", "again", "four", "save", "load"]
    assert names(include_rejected=True, gpus=1) == ["other", "one", "again", "bad"]
    assert names(limit=3) == ["other", "again", "load"], "the latest three"


@pytest.mark.parametrize(
    "ask", [Store.run, Store.steps, Store.checks, Store.checkpoints, Store.record, Store.parsed_log]
)
def test_an_unknown_run_is_answered_with_the_nearest(ask, tmp_path, make_result):
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    stored.write(store, make_result("pretrain_llama3.1_tiny-1a"))

    with pytest.raises(
        UserError, match=r"no run 'pretrain_llama3.1_tiny-1b'.* mean 'pretrain_llama3.1_tiny-1a'"
    ):
        ask(store, "pretrain_llama3.1_tiny-1b")
    with pytest.raises(UserError, match=r"`steptime results --all --format csv` lists all"):
        ask(store, "zzz")


def test_a_run_without_steps_or_checkpoints_is_known(store_url, make_result):
    result = make_result("bad", verdict=BAD, measurement=None)
    bare = result.model_copy(update={"log": result.log.model_copy(update={"steps": ()})})
    store = Store(store_url)
    stored.write(store, bare)

    assert store.steps("bad") == []
    assert store.checkpoints("bad") == []


def test_what_json_and_databases_refuse_is_stored_as_what_they_take(store_url, make_result):
    """NaN and infinity become NULL (the check names them); NUL in a torn log becomes a replacement."""
    result = make_result("bad", verdict=BAD, measurement=None)
    nan, infinity = float("nan"), float("inf")
    log = result.log.model_copy(
        update={
            "steps": (replace(result.log.steps[0], loss=nan, step_time_s=infinity),),
            "problems": (Problem(kind="torn", message="found \0 in it", fatal=True),),
            "ended": {"state": "failed", "loss": nan},
        }
    )
    torn = Verdict(checks=(Check(name="x", passed=False, message="Expected text, but found \0."),))
    store = Store(store_url)

    stored.write(store, result.model_copy(update={"log": log, "verdict": torn}))

    everything = [
        store.run("bad"),
        *store.steps("bad"),
        *store.checks("bad"),
        store.parsed_log("bad"),
        store.record("bad"),
    ]
    json.dumps(everything, allow_nan=False)
    assert (everything[1]["loss"], everything[1]["step_time_s"]) == (None, None)
    assert store.run("bad")["reason"] == "Expected text, but found \ufffd."


def test_no_secret_reaches_the_store(store_url, make_result):
    result = make_result(
        environment={"HF_TOKEN": "hf_abc123", "TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "WARN"},
        script=(
            "#!/bin/bash\n"
            "export HF_TOKEN='hf_abc123'\n"
            'export WANDB_API_KEY="wandb-xyz"\n'
            "export MY_PASSWORD=plain-word TOKENIZERS_PARALLELISM=false\n"
            'export HUGGING_FACE_HUB_TOKEN="$HF_TOKEN"\n'
            "curl -H 'Authorization: Bearer hf_abc123'\n"
        ),
    )
    store = Store(store_url)
    stored.write(store, result)

    record = json.loads(store.record(result.job.name)["content"])
    everything = json.dumps([store.results(), record, store.parsed_log(result.job.name)])
    for secret in ("hf_abc123", "wandb-xyz", "plain-word"):
        assert secret not in everything
    environment = {"HF_TOKEN": "(not stored)", "TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "WARN"}
    assert record["run"]["environment"] == record["provenance"]["options"]["environment"] == environment
    assert record["provenance"]["environment"]["HF_TOKEN"] == "(not stored)"
    script = record["provenance"]["script"]
    assert "MY_PASSWORD='(not stored)' TOKENIZERS_PARALLELISM=false" in script
    assert 'HUGGING_FACE_HUB_TOKEN="$HF_TOKEN"' in script, "a reference is no secret"
    assert "Bearer (not stored)'" in script


def test_how_long_the_latest_runs_took(store_url, make_result):
    store, status = Store(store_url), make_result().status
    for number, steps in enumerate((20, 30, 40)):
        ended = status.model_copy(update={"started_at": 1e9, "ended_at": 1e9 + 10 * steps})
        made = make_result(f"run-{number}", max_steps=steps, submitted_at=1e9 + number, status=ended)
        stored.write(store, made)
    never = status.model_copy(update={"started_at": None})
    stored.write(store, make_result("unknown", submitted_at=2e9, status=never))
    stored.write(store, make_result("bad", submitted_at=3e9, verdict=BAD))
    assert store.run("run-2")["gpu_hours"] == pytest.approx(2 * 400 / 3600)
    assert store.run("unknown")["gpu_hours"] is None

    of_cluster = store.run_times({"cluster": "local"}, 2)

    assert [(times.job_s, times.steps) for times in of_cluster] == [(400, 40), (300, 30)]
    assert [times.step_s for times in of_cluster] == [
        store.run(f"run-{n}")["step_time_mean_s"] for n in (2, 1)
    ]
    assert store.run_times({"cluster": "another"}, 2) == []


def test_judgements_and_accepted_levels_are_those_of_their_series(store_url, make_result):
    store, ids = Store(store_url), {}
    for gpus in (1, 2):
        stored.write(store, make_result(f"of-{gpus}", gpus=gpus, submitted_at=1e9 + gpus))
    judged = {"metric": "step_time_s", "series_state": "slower", "judged_on": "means", "judged_s": 0.5}
    unknown = dict.fromkeys(judgement_queries.columns()) | judged | {"rests_on": [1], "changes": {}}
    with write_transaction(store_url) as connection:
        for row in judgement_queries.read_runs(connection, {}, ["step_time_mean_s"]):
            ids[row["gpus"]] = row["id"]
        drift = {"kind": "drift", "rests_on": [2], "series_state": "drifted"}
        rows = [unknown | {"kind": "history"}, unknown | drift]
        for _ in range(2):
            judgement_queries.write(connection, {"gpus": 1}, {ids[1]: rows})
        judgement_queries.write(connection, {"gpus": 2}, {ids[2]: []})
        for note in ("once", "again"):
            judgement_queries.accept(connection, ids[1], note=note, accepted_by="ada", accepted_at=5.0)
        level = {"note": "again", "accepted_by": "ada", "accepted_at": 5.0}
        [(job_name, kept)] = judgement_queries.accepted(connection, {"gpus": 1}).items()
        assert job_name == "of-1"
        assert level.items() <= kept.items()
        assert judgement_queries.accepted(connection, {"gpus": 2}) == {}
    names = ("job_name", "series_state", "rests_on", "drift")
    assert [tuple(row[name] for name in names) for row in rows_with_judgements(store, {})] == [
        ("of-2", None, None, None),
        ("of-1", "slower", [1], [2]),
    ]


def test_runs_without_the_number_are_not_judged(tmp_path, make_result):
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    measured = make_result().measurement
    assert measured is not None
    for name, value in (("has", 1.0), ("zero", 0.0), ("none", None)):
        numbers = measured.model_copy(update={"checkpoint_save_s": value})
        stored.write(store, make_result(name, measurement=numbers))
    numbers = measured.model_copy(update={"checkpoint_save_s": 2.0})
    stored.write(store, make_result("bad", verdict=BAD, measurement=numbers))
    with read_connection(store.url) as connection:
        judged = judgement_queries.read_runs(connection, {}, ["checkpoint_save_s"])
    assert [row["job_name"] for row in judged] == ["has"]


def test_of_each_series_the_latest_runs_are_read_with_their_judgements(store_url, make_result):
    store = Store(store_url)
    for number in range(4):
        for gpus in (1, 2):
            stored.write(store, make_result(f"{gpus}-{number}", gpus=gpus, submitted_at=1e9 + number))
    stored.write(store, make_result("small", size="small", submitted_at=1e9))
    stored.write(store, make_result("bad", gpus=1, verdict=BAD, submitted_at=1e9 + 9))
    none = Store(store_url, dags=["another"])

    def read(since, limit):
        return [row["job_name"] for row in latest_rows_with_judgements(store, since, limit)]

    assert read(0, 2) == ["2-3", "1-3", "2-2", "1-2", "small"]
    assert read(1e9 + 3, 2) == ["2-3", "1-3"]
    assert read(1e9 + 4, 2) == []
    assert latest_rows_with_judgements(none, 0, 2) == []
    stored.write(store, make_result("long-ago", size="large", submitted_at=1e9 - 366 * 86_400))
    assert [row["job_name"] for row in latest_rows_with_judgements(store, None, 1)] == ["2-3", "1-3", "small"]
    assert [row["job_name"] for row in rows_with_judgements(store, {"gpus": 1}, limit=1)] == ["1-3"]
    assert rows_with_judgements(none, {}) == []
    assert [row["job_name"] for row in newest_of_each(store)] == ["2-3", "1-3", "small", "long-ago"]
    assert newest_of_each(none) == []
