"""Collective operations over message sizes: with gloo, and with a stand-in for nccl-tests."""

import os
import sys
from pathlib import Path

import pytest
from called import captured
from staged import staged_files
from stored import publish

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.judging.series import Series
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.checking import require_trainable
from steptime.store.run_queries import Store

from .conftest import end_of

ROOT = Path(__file__).parents[2]

PROGRAM = """#!/bin/sh
test "$*" = "-b 1048576 -e 4194304 -f 2 -w 5 -n 20 -N 2 -d bfloat16 -g 1" || exit 9
echo "# Using devices"
for rank in {ranks}; do
  echo "#  Rank  $rank Group  0 Pid  41 on    node001 device  $rank [0000:1b:00] NVIDIA H100 80GB HBM3"
done
echo "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw"
for cycle in 1 2; do
  echo "     1048576        524288  bfloat16     sum      -1    45.21   23.19   23.19      0    44.93   23.34"
  echo "     2097152       1048576  bfloat16     sum      -1    61.50   34.10   34.10      0    61.33   34.19"
  echo "     4194304       2097152  bfloat16     sum      -1    100.0   41.94   41.94  {wrong}"
done
"""
"""Prints what nccl-tests prints on two ranks, from rank 0 alone."""


def planned(**options):
    made = plan(PlanRequest(workload="nccl", **options))
    require_trainable(made.all_runs)
    return made.runs[0]


@pytest.mark.trainer
@pytest.mark.timeout(1500)
async def test_gloo_is_measured_checked_and_stored(local, make_config, make_result, trainer_python, tmp_path):
    run = planned(gpus="2")
    staged = staged_files(trainer_python, ROOT)
    job = await local.submit(job_spec(run, staged, make_config(), identity="d/r/c", started=1_700_000_000))
    status = await end_of(local, job.name)
    assert status.state is JobState.SUCCEEDED, Path(job.log_path).read_text()
    log = read_log(job.log_path, max_steps=run.max_steps)
    measured = measure(run, log)
    verdict = validate(run, status, log, measured)
    assert verdict.valid, verdict.reason
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    publish(store, make_result("c", run=run, log=log, measurement=measured, verdict=verdict))
    [row] = store.results()
    assert log.collective is not None
    assert [message["bytes"] for message in log.collective["messages"]] == [
        1 << 12,
        1 << 16,
        1 << 20,
        1 << 22,
    ]
    assert measured.step_time_median_s is not None
    of_links = 2 * (2 - 1) / 2 * (1 << 22) / measured.step_time_median_s / 1e9
    assert row["bus_bandwidth_gb_s"] == pytest.approx(of_links, rel=1e-4)
    assert (row["tokens_per_s"], row["mfu_percent"], row["size"]) == (None, None, "all_reduce")
    assert Series.from_row(row).is_judged


def run_nccl_tests(folder, ranks, wrong="    0"):
    program = folder / "all_reduce_perf_mpi"
    program.write_text(PROGRAM.format(ranks=ranks, wrong=wrong))
    program.chmod(0o755)
    few = ("--device=h100", "--cycles=2", "--max-bytes=4194304", "--nccl-tests")
    return captured(
        [sys.executable, "-m", "trainer.collectives", "all_reduce", *few],
        env={"PATH": f"{folder}:/usr/bin:/bin", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        cwd=ROOT,
    )


def test_tables_of_nccl_tests_become_steps_and_a_record(tmp_path):
    ended = run_nccl_tests(tmp_path, "0 1")
    assert ended.returncode == 0, ended.stderr
    path = tmp_path / "log.out"
    path.write_text(ended.stdout)
    log = read_log(path, max_steps=2)
    assert [step.step_time_s for step in log.steps] == [1e-4, 1e-4]
    assert not [problem for problem in log.problems if problem.fatal]
    assert log.collective is not None
    assert [
        (message["bytes"], pytest.approx(message["bus_bandwidth_gb_s"], abs=0.01))
        for message in log.collective["messages"]
    ] == [(1 << 20, 23.19), (1 << 21, 34.10), (1 << 22, 41.94)]


@pytest.mark.parametrize(
    ("ranks", "wrong", "sentence"),
    [
        ("0", "    0", "all_reduce_perf_mpi has 1 of 2 ranks: MPI does not connect them."),
        ("0 1", "    7", "received 7 wrong values in a message of 4194304 bytes"),
    ],
)
def test_numbers_that_do_not_count_are_refused(tmp_path, ranks, wrong, sentence):
    ended = run_nccl_tests(tmp_path, ranks, wrong)
    assert (ended.returncode, "steptime.collective" in ended.stdout) == (1, False)
    assert sentence in ended.stderr


def test_an_image_without_nccl_tests_is_named():
    ended = captured(
        [sys.executable, "-m", "trainer.collectives", "alltoall", "--device=h100", "--nccl-tests"],
        env=os.environ | {"PATH": "/nonexistent"},
        cwd=ROOT,
    )
    assert ended.returncode == 1
    assert "the image has no alltoall_perf_mpi: choose one with nccl-tests" in ended.stderr
