"""What commit 1f65a9a wrote is read: `of_1f65a9a` has its store, and run, record and log of one of its jobs.

The store is the dump of one that its own DAG made in a checkout of it, with the stand-in trainer of its
tests: two ranks with a checkpoint pair, and a run of one rank whose loss became NaN.
"""

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from steptime.judging.judgements import judge_all
from steptime.recipes.models import Run, Window
from steptime.results import archive
from steptime.results.log_rows import log_row
from steptime.results.record import RunRecord
from steptime.results.repeating import repeat_command_of_record
from steptime.results.store import Store

KEPT = Path(__file__).with_name("of_1f65a9a")
LOG = KEPT / "log-pretrain_llama3.1_tiny_fp32_2.out"
JOB = "pretrain_llama3.1_tiny_fp32_2-72dd608ad6-1"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    path = tmp_path / "s.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((KEPT / "store.sql").read_text())
    return Store(f"sqlite:///{path}")


def test_its_runs_are_there_with_all_that_was_kept_of_them(store: Store) -> None:
    rows = store.results(include_rejected=True)
    assert {row["label"]: row["state"] for row in rows} == {
        "tiny·fp32·2": "valid",
        "tiny·fp32·2·checkpoint save": "valid",
        "tiny·fp32·2·checkpoint load": "valid",
        "tiny·fp32·1": "rejected",
    }
    run = store.run(JOB)
    assert (run["window"], run["expert_parallel"]) == ("10:19", 1)
    assert run["step_time_mean_s"] == pytest.approx(0.4846)
    assert run["gpu_hours"] == pytest.approx(2 * (run["ended_at"] - run["started_at"]) / 3600)
    assert run["sweep"] is None
    assert store.step_times([JOB])[JOB] == dict.fromkeys(range(20), 0.4846)
    assert {check["passed"] for check in store.checks(JOB)} == {True}
    assert store.parsed_log(JOB)["measurement"]["step_time_mean_s"] == run["step_time_mean_s"]
    assert [row["label"] for row in store.results(search="nan loss", include_rejected=True)] == [
        "tiny·fp32·1"
    ]
    [save] = store.results(mode="checkpoint_save")
    assert save["checkpoint_save_s"] > 0
    assert [one["kind"] for one in store.checkpoints(save["job_name"])] == ["save"]


def test_its_records_are_byte_for_byte_as_they_were_and_understood(store: Store) -> None:
    kept = store.record(JOB)
    assert kept["content"] == (KEPT / "record.json").read_text()
    assert kept["sha256"] == hashlib.sha256(kept["content"].encode()).hexdigest()
    record = RunRecord.model_validate_json(kept["content"])
    assert record.run == Run.model_validate_json((KEPT / "run.json").read_bytes())
    assert record.provenance.git_commit is not None
    assert record.provenance.git_commit.startswith("1f65a9a")
    command = repeat_command_of_record(json.loads(kept["content"]))
    assert command is not None
    assert command.startswith("steptime run llama3.1")
    assert "--gpus 2" in command


def test_its_runs_are_judged_and_archived_with_those_of_today(store: Store, tmp_path: Path) -> None:
    assert judge_all(store) == 3
    made = archive.write_archive(store, store.results(include_rejected=True), tmp_path / "all.tar.zst")
    anew = Store(f"sqlite:///{tmp_path / 'anew.db'}")
    archive.restore(anew, tmp_path / "all.tar.zst", tmp_path / "steps")
    own = [row["job_name"] for row in store.results(include_rejected=True)]
    assert [row["job_name"] for row in anew.results(include_rejected=True)] == own
    assert made.runs == 4


def test_its_log_is_measured_as_it_was(store: Store) -> None:
    row, stored = log_row([LOG]), store.run(JOB)
    assert (row["state"], row["window_from"], row["reason"]) == ("complete", "run.json", None)
    same = ("size", "gpus", "window", "step_time_mean_s", "tokens_per_s_per_gpu", "mfu_percent")
    assert {name: row[name] for name in same} == {name: stored[name] for name in same}
    assert log_row([LOG], Window(first=0, last=19))["steps_in_window"] == 20
