"""What is kept beside a job's log on its cluster, and read from there again."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from steptime.clusters.base import Cluster, Job, JobState, JobStatus
from steptime.errors import SystemFailure
from steptime.results.models import Result
from steptime.results.parsed_log import keep_parsed_log, kept_parsed_log, read_whole
from steptime.results.record import (
    earlier_attempts,
    keep_record,
    kept_record,
    record_path,
    recorded_attempts,
    recorded_end,
    recorded_job,
    recorded_nodes,
    with_script,
)

MakeResult = Callable[..., Result]


class Files:
    """A cluster that has files, and jobs by their names."""

    name = "local"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.jobs: dict[str, Job] = {}
        self.polled: list[Sequence[str]] = []

    async def read(self, path: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        return self.files.get(path, b"")[offset : offset + min(limit, 1000)]

    async def write(self, path: str, content: bytes) -> None:
        self.files[path] = content

    async def poll(self, names: Sequence[str]) -> dict[str, JobStatus]:
        self.polled.append(names)
        return {name: JobStatus(state=JobState.FAILED, reason=f"end of {name}") for name in names}

    async def find(self, name: str) -> Job | None:
        return self.jobs.get(name)


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def cluster(files: Files) -> Cluster:
    return files  # type: ignore[return-value]


def test_what_was_read_of_a_log_is_kept_and_read_again(
    cluster: Cluster, files: Files, make_result: MakeResult
) -> None:
    result = make_result()
    folder = result.job.directory
    asyncio.run(keep_parsed_log(cluster, result.job, result.log))
    assert files.files.keys() == {f"{folder}/steps.jsonl", f"{folder}/reading.json"}
    assert files.files[f"{folder}/steps.jsonl"].count(b"\n") == len(result.log.steps)
    assert b"null" not in files.files[f"{folder}/steps.jsonl"], "of many lines, what none of them states"
    assert b'"steps"' not in files.files[f"{folder}/reading.json"]
    assert asyncio.run(kept_parsed_log(cluster, result.job)) == result.log
    for path, broken in {"steps.jsonl": b"{}\n", "reading.json": b"", "reading.json ": b"[]"}.items():
        kept = dict(files.files)
        files.files[f"{folder}/{path.strip()}"] = broken
        with pytest.raises(SystemFailure, match=r"are gone or were changed: clear the task 'parse'"):
            asyncio.run(kept_parsed_log(cluster, result.job))
        files.files = kept


def test_a_long_file_is_read_to_its_end(cluster: Cluster, files: Files) -> None:
    files.files["/a"] = bytes(range(256)) * 10
    assert asyncio.run(read_whole(cluster, "/a")) == files.files["/a"]
    assert asyncio.run(read_whole(cluster, "/b")) == b""


def test_the_record_is_written_once_and_read_again(
    cluster: Cluster, files: Files, make_result: MakeResult
) -> None:
    result = make_result()
    with pytest.raises(SystemFailure, match=r"record .*record\.json.* is gone: clear the task 'parse'"):
        asyncio.run(kept_record(cluster, result.job))
    assert asyncio.run(recorded_end(cluster, result.job)) is None
    assert asyncio.run(keep_record(cluster, result.job, result.record)) == (result.record, [])
    assert asyncio.run(kept_record(cluster, result.job)) == result.record
    assert asyncio.run(recorded_end(cluster, result.job)) == result.status
    of_another = result.job.model_copy(update={"job_id": "another"})
    assert asyncio.run(recorded_end(cluster, of_another)) is None
    assert recorded_job(result.record) == result.job
    assert recorded_nodes(result.record) == ("localhost",)
    for changed in ("{}", "no JSON"):
        assert (recorded_job(changed), recorded_nodes(changed), recorded_attempts(changed)) == (None, (), ())


def test_a_damaged_record_is_read_as_far_as_it_is_text(
    cluster: Cluster, files: Files, make_result: MakeResult
) -> None:
    job = make_result().job
    files.files[record_path(job.log_path)] = b'{"nodes": "\xff"}'
    assert asyncio.run(kept_record(cluster, job)) == '{"nodes": "\ufffd"}'


def test_a_record_has_the_script_as_it_lies_in_the_jobs_folder(
    cluster: Cluster, files: Files, make_result: MakeResult
) -> None:
    submitted = make_result().submitted
    files.files[f"{submitted.job.directory}/job.sh"] = b"#!/bin/bash\necho \xff\n"
    with_it = asyncio.run(with_script(cluster, submitted))
    assert with_it.made_by.script == "#!/bin/bash\necho \ufffd\n"
    assert with_it.made_by.model_copy(update={"script": submitted.made_by.script}) == submitted.made_by


def test_earlier_attempts_are_those_that_the_cluster_knows(
    cluster: Cluster, files: Files, make_result: MakeResult
) -> None:
    job = make_result().job
    assert asyncio.run(earlier_attempts(cluster, job, 1)) == ()
    assert files.polled == []
    third = job.model_copy(update={"name": "run-1a2b3c4d-3"})
    asyncio.run(earlier_attempts(cluster, third, 3))
    [names] = files.polled
    assert len(names) == 2
    files.jobs = {names[1]: job.model_copy(update={"name": names[1]})}
    [known] = asyncio.run(earlier_attempts(cluster, third, 3))
    assert (known.job.name, known.status.reason) == (names[1], f"end of {names[1]}")
