"""What every backend must do: a cluster added to the fixture `cluster` runs these tests too."""

import asyncio
import re
import time
from pathlib import Path

import psutil
import pytest

from steptime.clusters.base import Installation, JobState
from steptime.clusters.slurm.cluster import SlurmCluster
from steptime.errors import SystemFailure, UserError

from .conftest import end_of, eventually


def _pids(path):
    """Return the process ids that a job wrote into a file, one a line."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _lives(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
async def test_a_job_runs_in_its_folder_and_leaves_its_log(cluster, make_spec):
    spec = make_spec(
        "one", "pwd; cat run.json; echo to stderr >&2; test ! -t 0", files={"run.json": '{"a": 1}\n'}
    )
    before = time.time()
    job = await cluster.submit(spec)
    assert (job.cluster, job.name, job.directory, job.log_path) == (
        cluster.name,
        "one",
        spec.directory,
        spec.log_path,
    )
    assert int(before) <= job.submitted_at <= time.time()  # some clusters count in whole seconds
    status = await end_of(cluster, "one")
    assert (status.state, status.exit_code, status.reason) == (JobState.SUCCEEDED, 0, "")
    assert status.started_at is not None
    assert status.ended_at is not None
    assert job.submitted_at <= status.started_at <= status.ended_at <= time.time()
    assert len(status.nodes) == 1
    log = f'{spec.directory}\n{{"a": 1}}\nto stderr\n'.encode()
    assert await cluster.read(job.log_path) == log
    if (path := cluster.local_path(job.log_path)) is not None:
        assert path.read_bytes() == log


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "exit_code", "reason"),
    [
        ("exit 3", 3, "exit code 3"),
        ("kill -9 $$", 137, "exit code 137 (SIGKILL)"),
        ("no-such-command", 127, "exit code 127"),
    ],
)
async def test_a_failure_keeps_its_exit_code(cluster, make_spec, *, script, exit_code, reason):
    await cluster.submit(make_spec("fails", script))
    status = await end_of(cluster, "fails")
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, exit_code, reason)


@pytest.mark.long
async def test_submitting_a_name_again_gives_the_first_job_back(cluster, make_spec):
    ours = Installation(id="f00", address="http://airflow.example")
    specs = [make_spec("again", f"echo {word} >> count") for word in ("ran", "other")]
    spec, other = (spec.model_copy(update={"installation": ours}) for spec in specs)
    first = await cluster.submit(spec)
    while_it_lives = await cluster.submit(other)
    await end_of(cluster, "again")
    after_its_end = await cluster.submit(other)
    assert first == while_it_lives == after_its_end == await cluster.find("again")
    assert first.installation == ours
    assert (Path(first.directory) / "count").read_text() == "ran\n"


async def test_an_unknown_job_is_unknown_and_never_success(cluster):
    assert await cluster.find("nobody") is None
    status = (await cluster.poll(["nobody"]))["nobody"]
    assert status.state is JobState.UNKNOWN
    assert "nobody" in status.reason
    await cluster.cancel("nobody")


@pytest.mark.long
async def test_cancelling_ends_the_whole_process_tree(cluster, make_spec):
    # A child, a child in its own session, and an orphan whose parent has ended.
    script = """
        sleep 1000 & echo $! >> pids
        setsid bash -c 'echo $$ >> pids; exec sleep 1000' &
        (setsid env -i bash -c 'echo $$ >> orphan; exec sleep 1000' &)
        wait
    """
    job = await cluster.submit(make_spec("tree", script))
    pids, orphan = Path(job.directory) / "pids", Path(job.directory) / "orphan"
    await eventually(lambda: len(_pids(pids)) == 2 and _pids(orphan))
    await cluster.cancel("tree")
    status = (await cluster.poll(["tree"]))["tree"]
    assert (status.state, status.reason, status.exit_code) == (JobState.CANCELLED, "cancelled", None)
    assert not [pid for pid in _pids(pids) if _lives(pid)]
    if isinstance(cluster, SlurmCluster):  # Slurm ends orphans by cgroup, which the mini one lacks
        psutil.Process(_pids(orphan)[0]).kill()
    else:
        assert not _lives(_pids(orphan)[0])
    await cluster.cancel("tree")  # no error for a job that has ended


@pytest.mark.long
async def test_the_time_limit_ends_a_job(cluster, make_spec, hasten_limit):
    job = await cluster.submit(make_spec("slow", "touch started; sleep 1000", time_limit_s=1))
    if isinstance(cluster, SlurmCluster):  # others may end it before it prints
        await eventually((Path(job.directory) / "started").exists)
    hasten_limit(job)
    status = await end_of(cluster, "slow")
    assert status.state is JobState.TIMED_OUT
    assert "time limit" in status.reason
    assert status.started_at is not None
    assert status.ended_at is not None
    assert status.ended_at - status.started_at >= 1


@pytest.mark.long
async def test_a_job_waits_for_its_slots_and_can_be_cancelled_there(cluster, make_spec):
    job = await cluster.submit(
        make_spec("first", "echo > started; while test ! -e done; do sleep 0.02; done", slots=2)
    )
    await eventually((Path(job.directory) / "started").exists)
    await cluster.submit(make_spec("second", "true"))
    waiting = await cluster.submit(make_spec("third", "true", slots=2))
    statuses = await cluster.poll(["first", "second", "third"])
    assert [status.state for status in statuses.values()] == ["running", "queued", "queued"]
    deadline = time.monotonic() + 60
    while not (await cluster.poll(["third"]))["third"].reason:  # words of the cluster's own
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    await cluster.cancel("second")
    second = (await cluster.poll(["second"]))["second"]
    assert (second.state, second.reason) == (JobState.CANCELLED, "cancelled before it started")
    assert second.started_at is None
    (Path(job.directory) / "done").touch()
    assert (await end_of(cluster, "first")).state is JobState.SUCCEEDED
    assert (await end_of(cluster, "third")).state is JobState.SUCCEEDED
    assert not (Path(waiting.directory).parent / "second" / "log.out").exists()


@pytest.mark.parametrize("name", ["", "../up", "a\n", "x" * 201])
async def test_a_name_that_is_no_plain_one_is_refused(cluster, make_spec, name):
    spec = make_spec("plain", "true").model_copy(update={"name": name})
    with pytest.raises(UserError, match="cannot be used"):
        await cluster.submit(spec)


async def test_a_file_of_no_plain_name_or_of_the_scripts_is_refused(cluster, make_spec):
    for file in ("../up", "a/b", "", ".", "..", "job.sh"):
        with pytest.raises(UserError, match="must be a plain file name"):
            await cluster.submit(make_spec("one", "true", files={file: ""}))
    assert await cluster.find("one") is None


async def test_files_are_written_whole_and_read_in_part(cluster, tmp_path):
    path = str(tmp_path / "made" / "here" / "f'i $le")
    assert await cluster.read(path) == b""
    await cluster.write(path, b"0123456789")
    assert await cluster.read(path, 3, 4) == b"3456"
    assert await cluster.read(path, 10) == b""
    await cluster.write(path, b"new")
    assert await cluster.read(path) == b"new"
    assert [file.name for file in Path(path).parent.iterdir()] == ["f'i $le"]
    with pytest.raises(SystemFailure, match="could not be written"):
        await cluster.write(f"{path}/below a file", b"")


async def test_a_command_gets_its_arguments_as_they_are(cluster, tmp_path):
    hostile = f"$(touch {tmp_path}/canary) `touch {tmp_path}/canary` ; ' \" \n *"
    done = await cluster.run(["printf", "%s", hostile])
    assert (done.exit_code, done.stdout, done.stderr) == (0, hostile, "")
    assert not (tmp_path / "canary").exists()


async def test_a_command_reports_line_by_line_while_it_runs(cluster, tmp_path):
    lines = []
    gate = tmp_path / "gate"

    def hear(line):
        lines.append(line)
        gate.touch()  # the command waits for this, so the line came before its end

    script = (
        'echo one; while [ ! -e "$0" ]; do sleep 0.02; done; echo zwei-ü >&2; printf "no newline"; exit 4'
    )
    done = await cluster.run(["bash", "-c", script, str(gate)], on_output=hear)
    assert done.exit_code == 4
    assert (done.stdout, done.stderr) == ("one\nno newline", "zwei-ü\n")
    assert sorted(lines) == ["no newline", "one", "zwei-ü"]


async def test_a_command_that_is_not_there_ends_as_in_a_shell(cluster):
    done = await cluster.run(["no-such-command", "x"])
    assert done.exit_code == 127
    assert re.search("no-such-command|No such file", done.stderr)  # Ubuntu 26.04's timeout does not name it


@pytest.mark.long
async def test_a_command_that_takes_too_long_is_ended(cluster, tmp_path):
    pids = tmp_path / "pids"
    script = 'sleep 1000 & echo $! > "$0"; wait'
    with pytest.raises(SystemFailure, match=r"bash was ended after 0\.5 s$"):  # no argument: it may be secret
        await cluster.run(["bash", "-c", script, str(pids)], timeout_s=0.5)
    await eventually(lambda: not [pid for pid in _pids(pids) if _lives(pid)])


async def test_a_command_ends_with_the_task_that_waits_for_it(cluster, tmp_path):
    pids = tmp_path / "pids"
    task = asyncio.create_task(cluster.run(["bash", "-c", 'echo $$ > "$0"; exec sleep 1000', str(pids)]))
    await eventually(lambda: _pids(pids))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not _lives(_pids(pids)[0]))
