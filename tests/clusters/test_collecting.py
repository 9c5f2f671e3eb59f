"""Copies of logs that this machine cannot open, from a local cluster whose files are read only through it."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from steptime import settings
from steptime.clusters import collecting
from steptime.clusters.collecting import cluster_path, collect_log
from steptime.clusters.local.cluster import LocalCluster
from steptime.errors import SystemFailure, UserError
from steptime.files import left_out_mark
from steptime.logs import reader

from .conftest import end_of, eventually

LONG = "seq 100000; cat run.json"
"""A job with a long log, of some 60 pieces."""


class FarCluster(LocalCluster):
    """A local cluster whose files are read in small pieces; `before_read` may fail, or change a file."""

    def __init__(self, config):
        super().__init__(config)
        self.offsets = []
        self.before_read = lambda path: None

    def local_path(self, path):
        return None

    async def read(self, path, offset=0, limit=1 << 20):
        self.before_read(path)
        if path.endswith(".out"):
            self.offsets.append(offset)
        return await super().read(path, offset, min(limit, 10_000))


@pytest.fixture
async def far(make_config, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    async with FarCluster(make_config()) as cluster:
        yield cluster
        for job in await cluster.live_jobs():
            await cluster.cancel(job.name)


@pytest.fixture
async def ended(far, make_spec):
    """Return a job that has ended and left a long log."""
    spec = make_spec("one", LONG, files={"run.json": '{"a": 1}'})
    log = str(Path(spec.directory) / "log-one.out")
    job = await far.submit(spec.model_copy(update={"log_path": log}))
    await end_of(far, "one")
    return job


async def test_a_copy_is_whole_and_bears_the_name_of_the_job(far, ended):
    copy = await collect_log(far, ended)

    assert copy == settings.home() / "logs-collected" / "here" / "one" / "log-one.out"
    assert copy.read_bytes() == Path(ended.log_path).read_bytes()
    assert len(far.offsets) > 50
    assert {path.name for path in copy.parent.iterdir()} == {
        "log-one.out",
        "run.json",
        "collected.json",
        ".lock",
    }
    assert copy.with_name("run.json").read_text() == '{"a": 1}'
    assert cluster_path(copy) == ended.log_path
    assert cluster_path(Path(ended.log_path)) == ended.log_path


async def test_a_copy_that_was_broken_off_is_made_again(far, ended):
    def break_at_the_thirtieth(_):
        if len(far.offsets) == 29:
            far.before_read = lambda path: None
            raise SystemFailure("the connection to the cluster was lost")

    far.before_read = break_at_the_thirtieth
    with pytest.raises(SystemFailure, match="connection"):
        await collect_log(far, ended)
    folder = settings.home() / "logs-collected" / "here" / "one"
    assert not (folder / "log-one.out").exists(), "what is not whole does not bear the name"

    copy = await collect_log(far, ended)

    assert copy.read_bytes() == Path(ended.log_path).read_bytes()
    assert not list(folder.glob(".*.part"))


async def test_a_log_that_grows_while_it_is_copied_is_followed_to_its_end(far, ended):
    log, grown = Path(ended.log_path), 0

    def grow(_):
        nonlocal grown
        if grown < 100:
            grown += 1
            with log.open("ab") as file:
                file.write(b"one line more\n" * 500)

    far.before_read = grow
    assert (await collect_log(far, ended)).read_bytes() == log.read_bytes()
    assert grown == 100


async def test_a_copy_of_a_running_jobs_log_is_completed_when_it_has_ended(far, make_gated):
    gated = make_gated("growing", "seq 20000")
    job = await far.submit(gated.spec)
    await eventually(lambda: gated.pid)
    begun = (await collect_log(far, job)).read_bytes()
    with Path(job.log_path).open("ab") as file:
        file.write(b"the last line\n")
    gated.let_go()
    await end_of(far, "growing")

    copy = await collect_log(far, job)

    assert begun
    assert copy.read_bytes() == begun + b"the last line\n"


@pytest.mark.parametrize("left", [b"", b"1\n2\n"])
async def test_a_log_that_is_cut_while_it_is_copied(far, ended, left):
    def cut(_):
        if len(far.offsets) == 20:
            Path(ended.log_path).write_bytes(left)

    far.before_read = cut
    with pytest.raises(SystemFailure, match=r"log-one\.out on cluster 'here' was cut or replaced while"):
        await collect_log(far, ended)


async def test_a_copy_outlives_its_log(far, ended):
    copy = await collect_log(far, ended)
    content = copy.read_bytes()
    Path(ended.log_path).unlink()

    assert (await collect_log(far, ended)).read_bytes() == content


async def test_two_at_once_make_one_copy(far, ended):
    copies = await asyncio.gather(*(collect_log(far, ended) for _ in range(3)))

    assert len(set(copies)) == 1
    assert copies[0].read_bytes() == Path(ended.log_path).read_bytes()
    assert far.offsets == sorted(far.offsets), "none began again"


@pytest.fixture
def small_limits(monkeypatch):
    """Read at most 20,000 bytes of a log's beginning and 5,000 of its end."""
    for module in (collecting, reader):
        monkeypatch.setattr(module, "LOG_HEAD_BYTES", 20_000)
        monkeypatch.setattr(module, "LOG_TAIL_BYTES", 5_000)
    monkeypatch.setattr(reader, "MOST_LOG_BYTES", 25_000)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("grown_by", [0, 5 << 40])
async def test_of_a_log_without_end_the_copy_has_the_beginning_and_the_end(far, ended, grown_by):
    log = Path(ended.log_path)
    content = log.read_bytes()
    os.truncate(log, len(content) + grown_by)
    with log.open("ab") as file:
        file.write(b"the last line\n")
    size = log.stat().st_size

    copy = await collect_log(far, ended)

    kept = copy.read_bytes()
    mark = b"\n[steptime: %d bytes of the log are left out here]\n" % (size - 25_000)
    assert kept.startswith(content[:20_000] + mark)
    assert kept.endswith(b"the last line\n")
    assert len(kept) == 25_000 + len(mark)
    assert not list(copy.parent.glob(".*.part"))


@pytest.mark.usefixtures("small_limits")
async def test_a_log_as_large_as_allowed_is_copied_whole(far, ended):
    for size in (19_999, 20_000, 20_001, 25_000):
        Path(ended.log_path).write_bytes(b"x" * size)
        copy = await collect_log(far, ended)
        assert copy.read_bytes() == b"x" * size
        copy.unlink()


@pytest.mark.parametrize("kind", ["fifo", "link to /dev/zero"])
async def test_a_log_that_is_no_file_is_not_read_and_leaves_nothing(far, ended, kind):
    log = Path(ended.log_path)
    log.unlink()
    os.mkfifo(log) if kind == "fifo" else log.symlink_to("/dev/zero")
    with pytest.raises(SystemFailure, match="not a regular file"):
        await collect_log(far, ended)
    folder = settings.home() / "logs-collected" / "here" / "one"
    assert [path.name for path in folder.iterdir()] == [".lock"]
    with pytest.raises(UserError, match="not a regular file"):
        reader.read_log(log)


@pytest.mark.usefixtures("small_limits")
def test_a_log_without_end_is_read_to_its_limit_and_the_problem_is_told(tmp_path):
    log = tmp_path / "log.out"
    with log.open("wb") as file:
        file.write(b"line\n" * 3000)
        file.truncate(5 << 40)
    read = reader.read_log(log)
    assert read.bytes_read == 25_000 + len(left_out_mark((5 << 40) - 25_000))
    [problem] = [problem for problem in read.problems if problem.kind == "log_too_large"]
    assert "only its first" in problem.message
    assert not problem.fatal


async def test_a_full_disk_leaves_no_part_of_a_copy(far, ended, monkeypatch):
    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(collecting.os, "fsync", fail)
    with pytest.raises(SystemFailure, match="No space left on device"):
        await collect_log(far, ended)
    folder = settings.home() / "logs-collected" / "here" / "one"
    assert [path.name for path in folder.iterdir()] == [".lock"]
