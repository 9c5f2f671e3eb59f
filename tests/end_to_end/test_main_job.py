"""The main job: from a trigger to measured, validated, published results, as a user's shell sees it."""

import json
from pathlib import Path

import pytest

from end_to_end.driving import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.trainer, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def rows(main_job):
    assert main_job.returncode == 0, main_job.stderr
    return {(row["mode"], row["gpus"]): row for row in json.loads(main_job.stdout)["results"]}


def test_every_planned_run_is_published_and_valid(rows):
    assert set(rows) == {
        ("performance", 1),
        ("performance", 2),
        ("checkpoint_save", 2),
        ("checkpoint_load", 2),
    }
    assert {row["state"] for row in rows.values()} == {"valid"}
    for (mode, ranks), row in rows.items():
        assert (row["global_batch_size"], row["data_parallel"]) == (8 * ranks, ranks)
        assert row["tokens_per_s"] > 0
        assert row["mfu_percent"] is None  # on the CPU
        if mode == "performance":
            assert (row["window"], row["steps_in_window"]) == ("4:7", 4)


def test_progress_is_told_while_it_runs(main_job):
    for words in ("following http://127.0.0.1:", "0 of 4 done", "tiny·fp32·", "4 of 4 done"):
        assert words in main_job.stderr


def test_the_checkpoint_was_saved_and_loaded(rows):
    saved, loaded = rows["checkpoint_save", 2], rows["checkpoint_load", 2]
    assert saved["checkpoint_save_s"] > 0
    assert loaded["checkpoint_load_s"] > 0
    assert loaded["window"] == "8:8"
    folder = Path(saved["log_path"]).parent
    assert next(folder.rglob("checkpoints")).is_dir()
    assert not list(folder.rglob("*.distcp")), "removed once it was loaded"


def test_parse_agrees_with_the_store_to_the_last_digit(airflow, rows):
    for row in rows.values():
        parsed = airflow.steptime("parse", row["log_path"], "--format", "json")
        assert parsed.returncode == 0, parsed.stderr
        (read,) = json.loads(parsed.stdout)["logs"]
        shared = set(read) & set(row)
        assert {"step_time_mean_s", "step_time_median_s", "step_time_std_s", "window"} <= shared
        differences = {
            name: (read[name], row[name])
            for name in shared
            if name.endswith("_s") and read[name] != row[name]
        }
        assert not differences


def test_the_logs_of_its_tasks_have_the_script_and_the_steps(airflow, rows):
    row = rows["performance", 2]
    run = airflow.client.dag_run(row["dag_id"], row["dag_run_id"])
    tasks = [airflow.task(run, f"performance.{name}", row["map_index"]) for name in ("submit", "wait")]
    submitted, waited = (airflow.log_text(run, task) for task in tasks if task is not None)
    assert "trainer.cpu_ranks" in submitted
    for words in ("7 of 0-7", "loss", "succeeded"):
        assert words in waited


def test_status_is_healthy(airflow):
    def healthy():  # on a busy machine a heartbeat may be late
        status = airflow.steptime("status", "--format", "json")
        return status.returncode == 0 and set(json.loads(status.stdout)["health"].values()) == {"healthy"}

    wait_until("a healthy Airflow", healthy)
