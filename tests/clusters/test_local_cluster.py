"""The local cluster's own promises, on real processes: what survives whose death, what is left of a job."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from steptime.clusters.base import Cluster, JobSpec, JobState, JobStatus
from steptime.clusters.local import state
from steptime.clusters.local.cluster import LocalCluster, LocalConfig
from steptime.clusters.local.state import Ended, JobFolder, LocalJob, Runner, Started, settle_abandoned
from steptime.errors import SystemFailure
from steptime.process_identity import start_tick

MakeConfig = Callable[..., LocalConfig]
MakeSpec = Callable[..., JobSpec]
MakeGated = Callable[..., Any]
EndOf = Callable[[Cluster, str], Awaitable[JobStatus]]
Eventually = Callable[[Callable[[], object]], Awaitable[None]]

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
"""Another process: submits, says which job it got, and lives until its input is closed."""

LEAVES_A_CHILD = "(setsid bash -c 'echo $$ > left; exec sleep 1000' &)"


def submitter(config: LocalConfig, spec: JobSpec) -> "subprocess.Popen[str]":
    program = [sys.executable, "-c", textwrap.dedent(SUBMIT_AND_LIVE_ON)]
    return subprocess.Popen(
        [*program, config.model_dump_json(), spec.model_dump_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def job_folder(cluster: LocalCluster, name: str) -> JobFolder:
    return JobFolder(cluster._state, name)


def runner_of(cluster: LocalCluster, name: str) -> int:
    runner = job_folder(cluster, name).read(Runner)
    assert runner is not None
    return runner.pid


async def status_of(cluster: Cluster, name: str) -> JobStatus:
    return (await cluster.poll([name]))[name]


# --- what a job survives, and what it does not share -----------------------------------------------


async def test_a_job_survives_the_death_of_its_submitters_whole_process_group(
    make_config: MakeConfig, make_gated: MakeGated, end_of: EndOf, eventually: Eventually
) -> None:
    config, job = make_config(), make_gated("orphan")
    with submitter(config, job.spec) as process:
        assert process.stdout is not None
        submitted = json.loads(process.stdout.readline())
        await eventually(lambda: job.pid)
        os.killpg(process.pid, signal.SIGKILL)
    async with LocalCluster(config) as cluster:  # another process, which knows only the name
        found = await cluster.find("orphan")
        assert found is not None
        assert found.model_dump() == submitted
        assert (await status_of(cluster, "orphan")).state is JobState.RUNNING
        job.let_go()
        assert (await end_of(cluster, "orphan")).state is JobState.SUCCEEDED


async def test_a_job_shares_no_session_or_descriptor_with_its_submitter(
    local: LocalCluster, make_spec: MakeSpec, end_of: EndOf
) -> None:
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
    script_of_bash = descriptors.pop("255")  # where bash keeps the script that it reads
    assert script_of_bash == f"{spec.directory}/job.sh"
    assert descriptors == {"0": "/dev/null", "1": spec.log_path, "2": spec.log_path}
    assert int((Path(spec.directory) / "session").read_text()) != os.getsid(0)


async def test_secrets_of_the_submitter_stay_outside_the_job(
    local: LocalCluster, make_spec: MakeSpec, end_of: EndOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "PYTHONPATH", "HF_TOKEN"):
        monkeypatch.setenv(name, "hunter2")
    job = await local.submit(make_spec("env", "env"))
    await end_of(local, "env")
    seen = dict(line.split("=", 1) for line in (await local.read(job.log_path)).decode().splitlines())
    assert "hunter2" not in seen.values()
    assert seen.items() >= {"PATH": os.environ["PATH"], "STEPTIME_JOB_ID": job.job_id}.items()


# --- one job per name ------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [3, pytest.param(6, marks=pytest.mark.slow)])
async def test_many_processes_that_submit_one_name_get_one_job(
    make_config: MakeConfig, make_spec: MakeSpec, end_of: EndOf, many: int
) -> None:
    config, spec = make_config(), make_spec("one", "echo ran >> count; sleep 0.1")
    processes = [submitter(config, spec) for _ in range(many)]
    answers = {process.communicate()[0] for process in processes}
    assert len(answers) == 1
    async with LocalCluster(config) as cluster:
        assert (await end_of(cluster, "one")).state is JobState.SUCCEEDED
    assert (Path(spec.directory) / "count").read_text() == "ran\n"


async def test_threads_that_submit_one_name_get_one_job(
    local: LocalCluster, make_spec: MakeSpec, end_of: EndOf
) -> None:
    spec = make_spec("one", "echo ran >> count")
    jobs = await asyncio.gather(*(local.submit(spec) for _ in range(8)))
    assert len({job.job_id for job in jobs}) == 1
    await end_of(local, "one")
    assert (Path(spec.directory) / "count").read_text() == "ran\n"


async def test_a_submit_that_died_before_the_start_is_taken_up_by_the_next(
    local: LocalCluster, make_spec: MakeSpec, end_of: EndOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec("half", "echo ran >> count")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalCluster, "_start_runner", die)
        with pytest.raises(KeyboardInterrupt):
            local._submit(spec)
    status = await status_of(local, "half")
    assert status.state is JobState.UNKNOWN
    assert "submit it again" in status.reason
    found = await local.find("half")
    assert await local.submit(spec) == found
    assert (await end_of(local, "half")).state is JobState.SUCCEEDED
    assert (Path(spec.directory) / "count").read_text() == "ran\n"


async def test_a_job_whose_runner_died_before_it_started_can_be_cancelled(
    local: LocalCluster, make_spec: MakeSpec, make_gated: MakeGated, eventually: Eventually
) -> None:
    blocking, spec = make_gated("blocking", slots=2), make_spec("half", "true")
    await local.submit(blocking.spec)
    await local.submit(spec)
    await eventually(lambda: job_folder(local, "half").read(Runner))
    os.kill(runner_of(local, "half"), signal.SIGKILL)
    await eventually(lambda: not job_folder(local, "half").runner_lives())
    assert (await status_of(local, "half")).state is JobState.UNKNOWN
    await local.cancel("half")
    assert (await status_of(local, "half")).state is JobState.CANCELLED
    await local.submit(spec)  # and it stays so
    assert (await status_of(local, "half")).state is JobState.CANCELLED


# --- a runner that is killed -----------------------------------------------------------------------


def test_of_a_job_whose_own_record_is_gone_nothing_is_said_to_be_killed(local: LocalCluster) -> None:
    folder = job_folder(local, "bare")
    folder.path.mkdir(parents=True)
    folder.write(Started(started_at=1.0, node="here"))
    ended = settle_abandoned(folder)
    assert ended == folder.read(Ended)
    assert ended is not None
    assert (ended.state, ended.reason) == ("unknown", "its runner died, so how the job ended is not known")


@pytest.mark.long
async def test_the_job_of_a_killed_runner_is_unknown_and_leaves_no_process(
    local: LocalCluster, make_gated: MakeGated, eventually: Eventually
) -> None:
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
        assert await another.submit(job.spec) == submitted  # it may have run: it is never started twice
        assert await status_of(another, "lost") == status


async def test_the_next_job_starts_only_when_nothing_is_left_of_a_killed_runners_job(
    local: LocalCluster, make_spec: MakeSpec, make_gated: MakeGated, end_of: EndOf, eventually: Eventually
) -> None:
    job = make_gated("lost", LEAVES_A_CHILD, slots=2)
    await local.submit(job.spec)
    left = job.folder / "left"
    await eventually(lambda: job.pid and left.exists() and left.read_text())
    still_alive = rf"grep -E '^State:\s+[^ZX]' /proc/{left.read_text().strip()}/status"
    await local.submit(make_spec("next", f"! {still_alive}", slots=2))
    os.kill(runner_of(local, "lost"), signal.SIGKILL)
    assert (await end_of(local, "next")).state is JobState.SUCCEEDED
    assert (await status_of(local, "lost")).state is JobState.UNKNOWN


async def test_after_a_restart_of_the_machine_a_job_is_unknown(
    local: LocalCluster, make_gated: MakeGated, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_gated("before")
    await local.submit(job.spec)
    await eventually(lambda: job.pid)
    os.kill(runner_of(local, "before"), signal.SIGKILL)
    await eventually(lambda: not job_folder(local, "before").runner_lives())
    monkeypatch.setattr(state, "boot_id", lambda: "another")
    status = await status_of(local, "before")
    assert (status.state, status.reason) == (
        JobState.UNKNOWN,
        "the machine was restarted while the job ran",
    )


async def test_a_reused_process_id_is_left_alone(
    local: LocalCluster, make_spec: MakeSpec, end_of: EndOf
) -> None:
    """The id of a runner that died belongs to somebody else now, while a new runner is only starting."""
    await local.submit(make_spec("other", "true"))
    await end_of(local, "other")
    record = job_folder(local, "other").read(LocalJob)
    assert record is not None
    job = job_folder(local, "again")
    job.path.mkdir()
    job.write(record)
    bystander = await asyncio.create_subprocess_exec("sleep", "1000")
    with state.locked(job.runner_lock):
        job.write(Runner(pid=bystander.pid, start_tick=start_tick(bystander.pid) - 1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(local.cancel("again"), 0.2)
        assert bystander.returncode is None
        bystander.kill()
        await bystander.wait()


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_command_that_is_cancelled_while_it_starts_leaves_nothing(
    local: LocalCluster, turns: int
) -> None:
    """However far asyncio has come with its start: the event loop has taken so many turns."""
    child = f"1000.{os.getpid()}{turns}"
    running = asyncio.create_task(local.run(["sh", "-c", 'sleep "$0" & wait', child]))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=60)
    assert running.cancelled()
    assert not [one.pid for one in psutil.process_iter(["cmdline"]) if child in (one.info["cmdline"] or ())]


# --- the end of a job ------------------------------------------------------------------------------


async def test_a_job_that_ignores_sigterm_is_killed_after_the_grace(
    make_config: MakeConfig, make_gated: MakeGated, eventually: Eventually
) -> None:
    job = make_gated("stubborn", "trap '' TERM")
    async with LocalCluster(make_config(grace_s=0.3)) as cluster:
        await cluster.submit(job.spec)
        await eventually(lambda: job.pid)
        began = time.monotonic()
        await cluster.cancel("stubborn")
        assert time.monotonic() - began >= 0.3
        assert (await status_of(cluster, "stubborn")).state is JobState.CANCELLED
    assert not psutil.pid_exists(job.pid)


async def test_a_job_may_tidy_up_on_sigterm(
    local: LocalCluster, make_gated: MakeGated, eventually: Eventually
) -> None:
    job = make_gated("tidy", "trap 'echo > tidied; exit 0' TERM")
    await local.submit(job.spec)
    await eventually(lambda: job.pid)
    await local.cancel("tidy")
    assert (await status_of(local, "tidy")).state is JobState.CANCELLED
    assert (job.folder / "tidied").exists()


async def test_what_a_job_leaves_running_is_ended_and_told(
    local: LocalCluster, make_spec: MakeSpec, end_of: EndOf
) -> None:
    spec = make_spec("careless", "setsid sleep 1000 & echo $! > pid")
    await local.submit(spec)
    status = await end_of(local, "careless")
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)
    assert status.reason == "processes that it left running were ended: 1"
    assert not psutil.pid_exists(int((Path(spec.directory) / "pid").read_text()))


async def test_a_runner_that_something_else_ends_says_so(
    local: LocalCluster, make_gated: MakeGated, end_of: EndOf, eventually: Eventually
) -> None:
    job = make_gated("told")
    await local.submit(job.spec)
    await eventually(lambda: job.pid)
    os.kill(runner_of(local, "told"), signal.SIGTERM)
    status = await end_of(local, "told")
    assert status.state is JobState.CANCELLED
    assert status.reason == "cancelled: something else ended its runner"


async def test_a_script_that_cannot_be_started_fails_with_the_reason(
    local: LocalCluster, make_spec: MakeSpec, end_of: EndOf, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    await local.submit(make_spec("no-log", "true").model_copy(update={"log_path": str(tmp_path / "taken")}))
    status = await end_of(local, "no-log")
    assert status.state is JobState.FAILED
    assert "the script could not be started: [Errno 21] Is a directory" in status.reason


# --- trouble at the start --------------------------------------------------------------------------


async def test_a_state_folder_that_cannot_be_written_is_named(
    make_config: MakeConfig, make_spec: MakeSpec, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    async with LocalCluster(make_config(work_dir=str(tmp_path / "file"))) as cluster:
        with pytest.raises(SystemFailure, match=r"job x could not be submitted on here: .*Not a directory"):
            await cluster.submit(make_spec("x", "true"))


async def test_a_runner_that_cannot_start_is_named(
    local: LocalCluster, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(SystemFailure, match="the runner of job x could not start"):
            await local.submit(make_spec("x", "true"))
    assert (await status_of(local, "x")).state is JobState.UNKNOWN


def test_a_job_that_never_had_a_runner_has_none(tmp_path: Path) -> None:
    job = JobFolder(tmp_path, "job-1")
    assert not job.runner_lives()
    job.path.mkdir(parents=True)
    assert not job.runner_lives()
    descriptor = state.open_lock(job.runner_lock)
    try:
        assert not job.runner_lives(), "the lock is there, and nobody holds it"
        assert job.runner_lock.stat().st_mode & 0o133 == 0, "no program, and written by its owner alone"
        assert state.lock_if_free(descriptor)
        assert job.runner_lives()
    finally:
        os.close(descriptor)
    assert not job.runner_lives()


class Seen:
    """A process as psutil shows it."""

    def __init__(
        self, *, job_id: str | None = None, fault: Exception | None = None, dies: bool = True
    ) -> None:
        self._job_id = job_id
        self._fault = fault
        self._dies = dies
        self.killed = 0

    def status(self) -> str:
        if self._fault is not None:
            raise self._fault
        return psutil.STATUS_RUNNING

    def environ(self) -> dict[str, str]:
        gone = self.killed and self._dies
        return {"A": "1"} | ({} if self._job_id is None or gone else {state.JOB_ID_VARIABLE: self._job_id})

    def kill(self) -> None:
        self.killed += 1


def test_every_process_of_a_job_is_ended_whatever_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [Seen(job_id="7"), Seen(job_id="7")]
    others = [
        *(Seen(), Seen(job_id="8"), Seen(job_id="7", fault=psutil.NoSuchProcess(1))),
        Seen(job_id="7", fault=psutil.AccessDenied(1)),
    ]
    for order in ([*others, *ours], [ours[0], *others, ours[1]]):
        pauses: list[float] = []
        monkeypatch.setattr(state.time, "sleep", pauses.append)
        monkeypatch.setattr(state.psutil, "process_iter", lambda order=order: iter(order))
        for one in ours:
            one.killed = 0
        assert state.kill_marked("7") == 2
        assert [one.killed for one in (*ours, *others)] == [1, 1, 0, 0, 0, 0]
        assert len(pauses) == 3, "who had no environment for an instant is looked at again a moment later"
        assert all(pauses)


def test_a_process_that_does_not_die_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    undead = Seen(job_id="7", dies=False)
    monkeypatch.setattr(state.psutil, "process_iter", lambda: iter([undead]))
    assert state.kill_marked("7", patience_s=0.05) == 1
    assert undead.killed > 1, "it is tried again"
