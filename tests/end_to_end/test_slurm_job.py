"""A DAG run on a real Slurm, over ssh: one job for each cell, and results that agree with its accounting."""

import json
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from stand_ins.trainer_python import STAND_IN_ON_SLURM

from end_to_end.driving import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.slurm, pytest.mark.timeout(1500)]


@pytest.mark.trainer
@pytest.mark.exhaustive  # the mixture below takes the same path, and test_bridge.py trains with this backend
def test_megatron_bridge_saves_a_checkpoint_loads_it_and_its_runs_are_published(airflow, slurm):
    what = ["bridge-llama", "--cluster", "mini-slurm", "--gpus", "2", "--checkpoint"]
    done = airflow.steptime("run", *what, "--wait", "--format", "json", timeout_s=1800)
    assert done.returncode == 0, done.stderr
    rows = {row["mode"]: row for row in json.loads(done.stdout)["results"]}
    assert {mode: row["state"] for mode, row in rows.items()} == dict.fromkeys(
        ("performance", "checkpoint_save", "checkpoint_load"), "valid"
    )
    assert rows["performance"]["window"] == "10:19"
    assert rows["checkpoint_load"]["window"] == "20:20", "it goes on where the other job saved"
    assert rows["checkpoint_save"]["checkpoint_save_s"] > 0
    assert rows["checkpoint_load"]["checkpoint_load_s"] > 0
    published = {row["job_name"] for row in airflow.results()}
    assert {row["job_name"] for row in rows.values()} <= published


def test_a_mixture_over_two_ranks_of_experts_is_one_job_for_each_cell(airflow, slurm):
    """The mixture is measured, saved and loaded with its experts over two ranks, and its page shows that."""
    what = ["grok1", "--cluster", STAND_IN_ON_SLURM, "--gpus", "2", "--checkpoint", "--max-steps", "12"]
    done = airflow.steptime("run", *what, "--window", "2:11", "--wait", "--format", "json", timeout_s=1800)
    assert done.returncode == 0, done.stderr
    rows = {row["job_name"]: row for row in json.loads(done.stdout)["results"]}
    columns = ("mode", "gpus", "expert_parallel", "data_parallel", "state")
    assert [tuple(row[name] for name in columns) for row in rows.values()] == [
        ("performance", 2, 2, 2, "valid"),
        ("checkpoint_save", 2, 2, 2, "valid"),
        ("checkpoint_load", 2, 2, 2, "valid"),
    ]
    loaded = next(row for row in rows.values() if row["mode"] == "checkpoint_load")
    assert loaded["checkpoint_load_s"] > 0
    assert loaded["window"] == "12:12", "it goes on where the other job saved"
    selected = f"dag_id=steptime_grok1-25.08&dag_run_id={quote(loaded['dag_run_id'], safe='')}"
    page = airflow.answer("GET", f"/steptime/api/results?{selected}").json()
    shown = [dict(zip(page["columns"], row, strict=True)) for row in page["rows"]]
    assert [tuple(row[name] for name in ("job_name", *columns)) for row in shown] == [
        (name, *(row[column] for column in columns)) for name, row in rows.items()
    ]

    work_dir = airflow.home / Path(loaded["log_path"]).relative_to(airflow.home).parts[0]
    fields = ["JobName", "State", "Start", "End", "ReqTRES", "WorkDir"]
    asked = ["--allocations", "--duplicates", "--noheader", "--parsable2", "--starttime=now-1hours"]

    def accounted():
        """Return our jobs in Slurm's accounting, or None until it has the end of each."""
        sacct = slurm.ssh("env", "SLURM_TIME_FORMAT=%s", "sacct", *asked, f"--format={','.join(fields)}")
        jobs = [dict(zip(fields, line.split("|"), strict=True)) for line in sacct.splitlines()]
        ours = [job for job in jobs if job["WorkDir"].startswith(f"{work_dir}/")]
        return ours if all(job["End"].isdecimal() for job in ours) else None

    ours = wait_until("the ends in the accounting", accounted)
    assert sorted(job["JobName"] for job in ours) == sorted(rows)
    for job in ours:
        row = rows[job["JobName"]]
        assert job["State"] == "COMPLETED"
        began, ended = (datetime.fromisoformat(row[name]).timestamp() for name in ("started_at", "ended_at"))
        assert (float(job["Start"]), float(job["End"])) == (began, ended)
        assert f"gres/gpu={row['gpus']}" in job["ReqTRES"].split(",")
