"""A DAG run on a real Slurm, over ssh: one job for each cell, and results that agree with its accounting."""

import json
from collections.abc import Iterator

import pytest
from slurm_service import MiniSlurm

from end_to_end.driving import Airflow, wait_until
from steptime.mini_slurm.login import CONNECTION
from steptime.service import connection_file

pytestmark = [pytest.mark.end_to_end, pytest.mark.trainer, pytest.mark.slurm, pytest.mark.timeout(2400)]


@pytest.fixture
def slurm(airflow: Airflow, mini_slurm: MiniSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniSlurm]:
    """The mini Slurm, which Airflow knows as `steptime slurm up` would tell it."""
    monkeypatch.setenv("STEPTIME_HOME", str(airflow.home))
    work = airflow.home / "mini-slurm-work"
    work.mkdir()
    (work / "venvs").symlink_to(airflow.home / "venvs")
    connection_file.keep(mini_slurm.login)
    yield mini_slurm
    connection_file.forget(CONNECTION)


def test_a_dag_run_is_one_job_for_each_cell(airflow: Airflow, slurm: MiniSlurm) -> None:
    what = ["llama3.1", "--cluster", "mini-slurm", "--gpus", "1,2", "--max-steps", "12", "--window", "2:11"]
    done = airflow.steptime("run", *what, "--wait", "--format", "json", timeout_s=1800)
    assert done.returncode == 0, done.stderr
    rows = {row["job_name"]: row for row in json.loads(done.stdout)["results"]}
    assert [(row["gpus"], row["state"]) for row in rows.values()] == [(1, "valid"), (2, "valid")]

    fields = ["JobName", "State", "Start", "End", "ReqTRES", "WorkDir"]
    shown = ["--allocations", "--duplicates", "--noheader", "--parsable2", "--starttime=now-1hours"]

    def accounted() -> list[dict[str, str]] | None:
        """Our jobs, once the accounting, which lags, has the end of each."""
        sacct = slurm.ssh("env", "SLURM_TIME_FORMAT=%s", "sacct", *shown, f"--format={','.join(fields)}")
        jobs = [dict(zip(fields, line.split("|"), strict=True)) for line in sacct.splitlines()]
        ours = [job for job in jobs if job["WorkDir"].startswith(f"{airflow.home}/")]
        return ours if all(job["End"].isdecimal() for job in ours) else None

    ours = wait_until("the ends in the accounting", accounted)
    assert sorted(job["JobName"] for job in ours) == sorted(rows)
    for job in ours:
        row = rows[job["JobName"]]
        assert job["State"] == "COMPLETED"
        assert (float(job["Start"]), float(job["End"])) == (row["started_at"], row["ended_at"])
        assert f"gres/gpu={row['gpus']}" in job["ReqTRES"].split(",")
