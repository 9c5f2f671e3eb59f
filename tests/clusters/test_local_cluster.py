"""What the local cluster alone promises, with real processes: what outlives what, and what a job leaves."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from steptime.clusters.base import JobState
from steptime.clusters.local import state
from steptime.clusters.local.cluster import LocalCluster, _request_end
from steptime.clusters.local.state import JobFolder
from steptime.errors import SystemFailure

from .conftest import end_of, eventually

SUBMIT_AND_LIVE_ON = """
    import asyncio, sys, time
    from steptime.clusters.base import JobSpec
    from steptime.clusters.local.cluster import LocalConfig, LocalCluster

    config, spec = sys.argv[1:]
    cluster = LocalCluster(LocalConfig.model_validate_json(config))
    job = asyncio.run(cluster.submit(JobSpec.model_validate_json(spec)))
    print(job.model_dump_json(), flush=True)
    sys.stdin.read()
"""
"""A program for another process, which submits, prints its job and lives until its input is closed."""

LEAVES_A_CHILD = "(setsid bash -c 'echo $$ > left; exec sleep 1000' &)"


def submitter(config, spec):
    program = [sys.executable, "-c", textwrap.dedent(SUBMIT_AND_LIVE_ON)]
    return subprocess.Popen(
        [*program, config.model_dump_json(), spec.model_dump_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def job_folder(cluster, name):
    return JobFolder(cluster._state, name)


def runner_of(cluster, name):
    pid = job_folder(cluster, name).runner_pid()
    assert pid is not None
    return pid


async def status_of(cluster, name):
    return (await cluster.poll([name]))[name]


# --- what a job survives, and what it does not share -----------------------------------------------


@pytest.mark.long
async def test_a_job_survives_the_death_of_its_submitters_whole_process_group(make_config, make_gated):
    config, job = make_config(), make_gated("orphan")
    with submitter(config, job.spec) as process:
        assert process.stdout is not None
        submitted = json.loads(process.stdout.readline())
        await eventually(lambda: job.pid)
        os.killpg(process.pid, signal.SIGKILL)
    async with LocalCluster(config) as cluster:  # it knows only the name
        found_job = await cluster.find("orphan")
        assert found_job is not None
        assert found_job.model_dump() == submitted
        assert (await status_of(cluster, "orphan")).state is JobState.RUNNING
        job.let_go()
        assert (await end_of(cluster, "orphan")).state is JobState.SUCCEEDED


async def test_a_job_shares_no_session_or_descriptor_with_its_submitter(local, make_spec):
    script = "for fd in /proc/$$/fd/*; do echo ${fd##*/} $(readlink $fd); done; ps -o sid= -p $$ > session"
    spec = make_spec("alone", script)
    inherited = os.open("/dev/zero", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        await local.submit(spec)
    finally:
        os.close(inherited)
    await end_of(local, "alone")
    log = (await local.read(spec.log_path)).decode()
    descriptors = dict(line.split(" ", 1) for line in log.splitlines() if "pipe:" not in line)  # bash's own
    script_of_bash = descriptors.pop("255")  # bash reads its script there
    assert script_of_bash == f"{spec.directory}/job.sh"
    assert descriptors == {"0": "/dev/null", "1": spec.log_path, "2": spec.log_path}
    assert int((Path(spec.directory) / "session").read_text()) != os.getsid(0)


async def test_secrets_of_the_submitter_stay_outside_the_job(local, make_spec, monkeypatch):
    for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "PYTHONPATH", "HF_TOKEN"):
        monkeypatch.setenv(name, "hunter2")
    job = await local.submit(make_spec("env", "env"))
    await end_of(local, "env")
    seen = dict(line.split("=", 1) for line in (await local.read(job.log_path)).decode().splitlines())
    assert "hunter2" not in seen.values()
    assert seen.items() >= {"PATH": os.environ["PATH"], "STEPTIME_JOB_ID": job.job_id}.items()


# --- one job per name ------------------------------------------------------------------------------


@pytest.mark.long
async def test_many_processes_that_submit_one_name_get_one_job(make_config, make_spec):
    config, spec = make_config(), make_spec("one", "echo ran >> count; sleep 0.1")
    processes = [submitter(config, spec) for _ in range(3)]
    answers = {process.communicate()[0] for process in processes}
    assert len(answers) == 1
    async with LocalCluster(config) as cluster:
        assert (await end_of(cluster, "one")).state is JobState.SUCCEEDED
    assert (Path(spec.directory) / "count").read_text() == "ran\n"


async def test_a_submit_that_died_before_the_start_is_taken_up_by_the_next(local, make_spec, monkeypatch):
    spec = make_spec("half", "echo ran >> count")

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalCluster, "_start_runner", die)
        with pytest.raises(KeyboardInterrupt):
            local._submit(spec)
    status = await status_of(local, "half")
    assert status.state is JobState.UNKNOWN
    assert "submit it again" in status.reason
    job = await local.find("half")
    assert await local.submit(spec) == job
    assert (await end_of(local, "half")).state is JobState.SUCCEEDED
    assert (Path(spec.directory) / "count").read_text() == "ran\n"


@pytest.mark.long
async def test_a_job_whose_runner_died_before_it_started_can_be_cancelled(local, make_spec, make_gated):
    blocking, spec = make_gated("blocking", slots=2), make_spec("half", "true")
    await local.submit(blocking.spec)
    await local.submit(spec)
    await eventually(lambda: job_folder(local, "half").runner_pid())
    os.kill(runner_of(local, "half"), signal.SIGKILL)
    await eventually(lambda: not job_folder(local, "half").runner_lives())
    assert (await status_of(local, "half")).state is JobState.UNKNOWN
    await local.cancel("half")
    assert (await status_of(local, "half")).state is JobState.CANCELLED
    await local.submit(spec)  # and stays cancelled
    assert (await status_of(local, "half")).state is JobState.CANCELLED


# --- a runner that is killed -----------------------------------------------------------------------


@pytest.mark.long
async def test_the_job_of_a_killed_runner_is_unknown_and_leaves_no_process(local, make_gated):
    job = make_gated("lost", LEAVES_A_CHILD)
    submitted = await local.submit(job.spec)
    left = job.folder / "left"
    await eventually(lambda: job.pid and left.exists() and left.read_text())
    runner = runner_of(local, "lost")
    os.kill(runner, signal.SIGKILL)
    await eventually(lambda: not job_folder(local, "lost").runner_lives())
    status = await status_of(local, "lost")
    assert status.state is JobState.UNKNOWN
    assert f"its runner (process {runner}) died" in status.reason
    assert "processes left of it were killed" in status.reason
    await eventually(lambda: not psutil.pid_exists(job.pid) and not psutil.pid_exists(int(left.read_text())))
    async with LocalCluster(local._config) as another:
        assert await status_of(another, "lost") == status
        assert await another.submit(job.spec) == submitted  # it may have run, so it is never started twice
        assert await status_of(another, "lost") == status


@pytest.mark.long
async def test_the_next_job_starts_only_when_nothing_is_left_of_a_killed_runners_job(
    local, make_spec, make_gated
):
    job = make_gated("lost", LEAVES_A_CHILD, slots=2)
    await local.submit(job.spec)
    left = job.folder / "left"
    await eventually(lambda: job.pid and left.exists() and left.read_text())
    still_alive = rf"grep -E '^State:\s+[^ZX]' /proc/{left.read_text().strip()}/status"
    await local.submit(make_spec("next", f"! {still_alive}", slots=2))
    os.kill(runner_of(local, "lost"), signal.SIGKILL)
    assert (await end_of(local, "next")).state is JobState.SUCCEEDED
    assert (await status_of(local, "lost")).state is JobState.UNKNOWN


async def test_after_a_restart_of_the_machine_a_job_is_unknown(local, make_gated, monkeypatch):
    job = make_gated("before")
    await local.submit(job.spec)
    await eventually(lambda: job.pid)
    os.kill(runner_of(local, "before"), signal.SIGKILL)
    await eventually(lambda: not job_folder(local, "before").runner_lives())
    monkeypatch.setattr(state, "boot_id", lambda: "another")
    status = await status_of(local, "before")
    assert (status.state, status.reason) == (JobState.UNKNOWN, "the machine was restarted while the job ran")


async def test_a_reused_process_id_is_left_alone(local, make_gated, make_spec):
    """The id of a killed runner belongs to another process by now."""
    blocking = make_gated("blocking", slots=2)
    await local.submit(blocking.spec)
    await local.submit(make_spec("waiting", "true"))
    job = job_folder(local, "waiting")
    await eventually(job.runner_pid)
    os.kill(runner_of(local, "waiting"), signal.SIGKILL)
    await eventually(lambda: not job.runner_lives())
    bystander = await asyncio.create_subprocess_exec("sleep", "1000")
    job.runner_lock.write_text(str(bystander.pid))
    await local.cancel("waiting")
    assert (await status_of(local, "waiting")).state is JobState.CANCELLED
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()


async def test_the_process_id_of_a_killed_runner_is_not_that_of_the_next_one(local, make_spec, monkeypatch):
    """The next runner is only starting, and whoever cancels its job has no id to signal."""
    spec = make_spec("again", "true")
    job = job_folder(local, "again")
    bystander = await asyncio.create_subprocess_exec("sleep", "1000")
    job.path.mkdir(parents=True)
    job.runner_lock.write_text(str(bystander.pid))
    starting = []

    def cancelled_meanwhile(_cluster, job, _number, _lock):
        starting.append(_request_end(job))

    monkeypatch.setattr(LocalCluster, "_start_runner", cancelled_meanwhile)
    await local.submit(spec)
    assert starting == [False]
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()


async def test_the_only_python_311_may_be_that_of_steptime(local, tmp_path, monkeypatch):
    """On a Debian 13 it is the one that uv fetched for steptime's environment, which no PATH has."""
    monkeypatch.setenv("PATH", str(tmp_path))
    name = Path(sys.executable).name
    done = await local.run([name, "-c", "print('works')"], timeout_s=60)
    assert (done.exit_code, done.stdout) == (0, "works\n")


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_command_that_is_cancelled_while_it_starts_leaves_nothing(local, turns):
    """Cancelling works at any point of asyncio's start: it comes after this many turns of the event loop."""
    child = f"1000.{os.getpid()}{turns}"
    running = asyncio.create_task(local.run(["sh", "-c", 'sleep "$0" & wait', child]))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=60)
    assert running.cancelled()
    assert not [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if child in (process.info["cmdline"] or ())
    ]


# --- the end of a job ------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(make_config, make_gated):
    job = make_gated("stubborn", "trap '' TERM")
    async with LocalCluster(make_config(grace_s=0.3)) as cluster:
        await cluster.submit(job.spec)
        await eventually(lambda: job.pid)
        began = time.monotonic()
        await cluster.cancel("stubborn")
        assert time.monotonic() - began >= 0.3
        assert (await status_of(cluster, "stubborn")).state is JobState.CANCELLED
    assert not psutil.pid_exists(job.pid)


async def test_a_job_may_tidy_up_on_sigterm(local, make_gated):
    job = make_gated("tidy", "trap 'echo > tidied; exit 0' TERM")
    await local.submit(job.spec)
    await eventually(lambda: job.pid)
    await local.cancel("tidy")
    assert (await status_of(local, "tidy")).state is JobState.CANCELLED
    assert (job.folder / "tidied").exists()


async def test_what_a_job_leaves_running_is_ended_and_told(local, make_spec):
    spec = make_spec("careless", "setsid sleep 1000 & echo $! > pid")
    await local.submit(spec)
    status = await end_of(local, "careless")
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)
    assert status.reason == "processes that it left running were ended: 1"
    assert not psutil.pid_exists(int((Path(spec.directory) / "pid").read_text()))


# --- trouble at the start --------------------------------------------------------------------------


async def test_a_state_folder_that_cannot_be_written_is_named(make_config, make_spec, tmp_path):
    (tmp_path / "file").touch()
    async with LocalCluster(make_config(work_dir=str(tmp_path / "file"))) as cluster:
        with pytest.raises(SystemFailure, match=r"job x could not be submitted on here: .*Not a directory"):
            await cluster.submit(make_spec("x", "true"))
