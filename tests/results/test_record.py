"""The record of a run: what is in it, and that it is written once. On the real local cluster."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime.clusters.base import Cluster, Job
from steptime.clusters.config import open_cluster
from steptime.clusters.local.cluster import LocalConfig
from steptime.errors import SystemFailure, UserError
from steptime.recipes.request import PlanRequest
from steptime.results.models import Result, Submitted
from steptime.results.record import (
    RECORD_FILE,
    RunRecord,
    as_text,
    differences,
    keep_record,
    make_record,
    record_path,
)

MakeResult = Callable[..., Result]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return open_cluster(LocalConfig(name="local", kind="local", gpu_type="cpu", work_dir=str(tmp_path)))


@pytest.fixture
def job(tmp_path: Path, make_result: MakeResult) -> Job:
    made = make_result().job
    return made.model_copy(
        update={"directory": str(tmp_path / "job"), "log_path": str(tmp_path / "job" / "log-x.out")}
    )


def record_of(result: Result, **replaced: Any) -> dict[str, Any]:
    parts = {name: replaced.pop(name) for name in Submitted.model_fields if name in replaced}
    ran = {"submitted": result.submitted.model_copy(update=parts), "status": result.status, "log": result.log}
    record: dict[str, Any] = json.loads(make_record(**{**ran, **replaced}))
    return record


def test_a_record_has_all_that_was_planned_staged_and_run(make_result: MakeResult) -> None:
    result = make_result(environment={"NCCL_DEBUG": "INFO"})

    request = PlanRequest(workload="llama3.1", environment={"PLACE": "Zürich"})
    whole = record_of(result, attempt=2, request=request)
    record = RunRecord.model_validate(whole)

    assert (record.run, record.job, record.status) == (result.run, result.job, result.status)
    assert (record.attempt, record.request) == (2, request)
    assert "Zürich" in as_text(whole), "as people read it"
    assert record.provenance == result.submitted.made_by
    assert record.provenance.options["gpus"] == "2"
    assert record.provenance.environment["OMP_NUM_THREADS"] == "1"
    assert record.versions == {
        "nemo": "2.7.3",
        "megatron_core": "0.15.3",
        "torch": "2.13.0",
        "python": "3.11.7",
    }
    assert record.nodes == ("localhost",)
    assert record.earlier_attempts == ()


def test_a_record_has_how_the_ranks_were_started_and_what_the_nodes_told(make_result: MakeResult) -> None:
    result = make_result()
    launch = {"numa_bound_ranks": 2, "vboost": False}
    found = {"refused": [], "nodes": [{"node": "n1", "faults": [], "matmul_tflops": 650.5}]}
    log = result.log.model_copy(
        update={"started": {**(result.log.started or {}), "launch": launch}, "node_check": found}
    )

    record = record_of(result, log=log)

    assert (record["launch"], record["node_check"]) == (launch, found)
    without = record_of(result)
    assert (without["launch"], without["node_check"]) == ({}, None)
    del without["launch"], without["node_check"]  # as one that was written before there was either
    assert RunRecord.model_validate(without).node_check is None


def test_what_the_training_told_at_its_end_counts_too(make_result: MakeResult) -> None:
    result = make_result()
    ended = {"state": "failed", "versions": {"torch": "2.13.0", "nccl": "2.28.9"}, "node_names": ["b", "a"]}
    log = result.log.model_copy(update={"started": None, "ended": ended})

    record = record_of(result, log=log)

    assert record["versions"] == {"torch": "2.13.0", "nccl": "2.28.9"}
    assert record["nodes"] == ["b", "a"], "in the order of their ranks, which is not the cluster's"
    silent = record_of(result, log=result.log.model_copy(update={"started": None, "ended": None}))
    assert (silent["versions"], silent["nodes"]) == ({}, ["localhost"])


async def test_a_record_is_written_beside_the_log_and_never_again(
    cluster: Cluster, job: Job, make_result: MakeResult
) -> None:
    record = make_result().record
    async with cluster:
        assert await keep_record(cluster, job, record) == (record, [])
        file = Path(job.log_path).with_name(RECORD_FILE)
        written = file.stat()
        assert file.read_text() == record
        assert record_path(job.log_path) == str(file)

        assert await keep_record(cluster, job, record) == (record, [])
        other = make_result(gpus=4, tensor=2).record
        kept, told = await keep_record(cluster, job, other)

    assert kept == file.read_text() == record
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert "run.recipe.parallelism.tensor is recorded as 1, and is 2 now" in told


async def test_a_record_that_somebody_changed_is_named(
    cluster: Cluster, job: Job, make_result: MakeResult
) -> None:
    file = Path(job.log_path).with_name(RECORD_FILE)
    file.parent.mkdir()
    for content in (b'{"job": ', b"\xff\xfe"):
        file.write_bytes(content)
        async with cluster:
            with pytest.raises(UserError, match=rf"{file} on cluster 'local' is no JSON .* move it away"):
                await keep_record(cluster, job, make_result().record)
        assert file.read_bytes() == content


async def test_a_record_that_cannot_be_written_is_a_failure_of_the_system(
    cluster: Cluster, job: Job, make_result: MakeResult
) -> None:
    nowhere = job.model_copy(update={"log_path": "/proc/no/such/folder/log.out"})

    async with cluster:
        with pytest.raises(SystemFailure, match=r"/proc/no/such/folder/record\.json could not be written"):
            await keep_record(cluster, nowhere, make_result().record)


def test_differences_are_told_by_their_places() -> None:
    kept = {"a": {"b": 1, "gone": 0}, "list": [1, 2], "same": [{"x": None}], "long": ["one"]}
    new = {"a": {"b": 1.5, "come": 0}, "list": [1, 3], "same": [{"x": None}], "long": ["one", "two"]}

    assert differences(json.dumps(kept), json.dumps(new)) == [
        "a.b is recorded as 1, and is 1.5 now",
        "a.gone is only in the recorded one",
        "a.come is only in the new one",
        "list[1] is recorded as 2, and is 3 now",
        'long is recorded as ["one"], and is ["one", "two"] now',
    ]
    assert differences(json.dumps(kept), json.dumps(kept, indent=2)) == []
    for one in ({"x": 1}, [1], "x"):
        for other in ({"x": 1}, [1], "x"):
            told = differences(json.dumps({"a": one}), json.dumps({"a": other}))
            expected = f"a is recorded as {json.dumps(one)}, and is {json.dumps(other)} now"
            assert told == ([] if one == other else [expected])
