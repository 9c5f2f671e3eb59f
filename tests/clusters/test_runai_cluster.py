"""Jobs on the stand-in for Run:ai: phases, several pods, changes to workloads by others, and the volume."""

import asyncio
from pathlib import Path

import psutil
import pytest
from stand_ins.runai import Fault

from steptime.clusters.base import JobState
from steptime.clusters.runai import cluster as runai_backend
from steptime.clusters.runai import command as runai_command
from steptime.clusters.runai.workloads import workload_name
from steptime.errors import SystemFailure, UserError

from .conftest import end_of, eventually

pytestmark = pytest.mark.long

GATED_PODS = "echo $$ > pid-$RANK; while test ! -e go; do sleep 0.02; done"


def pids(folder):
    return [int(file.read_text() or 0) for file in Path(folder).glob("pid-*")]


async def until_phase(cluster, server, name, phase):
    while True:
        status = (await cluster.poll([name]))[name]
        if server.workload(workload_name(name)).phase == phase:
            return status
        await asyncio.sleep(0.01)


async def test_a_job_of_several_nodes_has_a_pod_on_each(runai_server, runai_with, make_spec):
    # The first pod must end last: as soon as it has ended, Run:ai ends the others.
    script = """
        echo "pod $RANK of $WORLD_SIZE meets at $MASTER_ADDR"
        test "$MASTER_PORT" -gt 0
        touch "done-$RANK"
        while test ! -e done-1; do sleep 0.02; done
    """
    async with runai_with(gpus_per_node=1) as cluster:
        job = await cluster.submit(make_spec("pair", script, slots=2))
        status = await end_of(cluster, "pair")
        assert (status.state, status.nodes) == (JobState.SUCCEEDED, ("node-0", "node-1"))
        logs = [await cluster.read(job.log_path + suffix) for suffix in ("", ".1")]
    assert logs == [b"pod 0 of 2 meets at 127.0.0.1\n", b"pod 1 of 2 meets at 127.0.0.1\n"]
    [made] = runai_server.calls("POST", "/workloads/distributed")
    assert made.request["spec"]["compute"]["gpuDevicesRequest"] == 1
    assert not runai_server.calls("POST", "/workloads/trainings")


async def test_the_pod_that_failed_first_is_named_and_the_others_are_ended(runai_with, make_spec):
    script = 'echo $$ > pid-$RANK; if test "$RANK" = 1; then exit 5; fi; sleep 1000'
    async with runai_with(gpus_per_node=1) as cluster:
        job = await cluster.submit(make_spec("pair", script, slots=2))
        status = await end_of(cluster, "pair")
    assert (status.state, status.exit_code, status.reason) == (JobState.FAILED, 5, "pod 1: exit code 5")
    assert not [pid for pid in pids(job.directory) if psutil.pid_exists(pid)]


@pytest.mark.long
async def test_a_training_that_lost_a_pod_is_ended_after_a_while(runai_server, runai_with, make_spec):
    async with (
        runai_with(gpus_per_node=1, degraded_after_s=3600) as cluster,
        runai_with(gpus_per_node=1, degraded_after_s=0) as ending,
    ):
        job = await cluster.submit(make_spec("pair", GATED_PODS, slots=2))
        await eventually(lambda: len(pids(job.directory)) == 2)
        runai_server.do(runai_server.workload(workload_name("pair")).lose(1))
        status = await until_phase(cluster, runai_server, "pair", "Degraded")
        assert status.state is JobState.RUNNING
        assert status.reason == "degraded: 1 of 2 pods are gone"
        status = await end_of(ending, "pair")
    assert status.state is JobState.FAILED
    assert "degraded" in status.reason
    assert status.cluster_fault
    assert not [pid for pid in pids(job.directory) if psutil.pid_exists(pid)]


async def test_a_phase_that_runai_does_not_know_is_waited_for_and_then_an_error(
    runai, runai_server, runai_with, make_gated
):
    gated = make_gated("unseen")
    await runai.submit(gated.spec)
    await eventually(lambda: gated.pid)
    workload = runai_server.workload(workload_name("unseen"))
    workload.forced = "Unknown"
    assert (await until_phase(runai, runai_server, "unseen", "Unknown")).state is JobState.RUNNING
    workload.phase_at -= 10
    async with runai_with(unknown_after_s=5) as cluster:
        lost = (await cluster.poll(["unseen"]))["unseen"]
    assert (lost.state, lost.reason[:35]) == (JobState.UNKNOWN, "Run:ai has called its phase 'Unknow")
    workload.forced = ""
    gated.let_go()
    assert (await end_of(runai, "unseen")).state is JobState.SUCCEEDED  # an unknown job may still succeed


async def test_a_workload_that_others_deleted_is_unknown_and_not_made_again(
    runai, runai_server, make_gated, monkeypatch
):
    gated = make_gated("deleted")
    await runai.submit(gated.spec)
    await eventually(lambda: gated.pid)
    runai_server.do(runai_server.workload(workload_name("deleted")).delete())
    status = (await runai.poll(["deleted"]))["deleted"]
    assert status.state is JobState.QUEUED  # a list may lag for a moment
    monkeypatch.setattr(runai_backend, "_LISTED_WITHIN_S", -60)
    status = (await runai.poll(["deleted"]))["deleted"]
    assert status.state is JobState.UNKNOWN
    assert "deleted by somebody else" in status.reason
    job = await runai.submit(gated.spec)
    await runai.cancel("deleted")
    assert len(runai_server.named(workload_name("deleted"))) == 1
    await runai._client.suspend("trainings", job.job_id)  # as when others delete it at that moment
    assert runai_server.journal[-1].status == 404


async def test_a_failure_that_no_pod_noted_has_runais_own_warning(runai, runai_server, make_gated):
    runai_server.dwell_s = {"Creating": 3600.0}
    await runai.submit(make_gated("no-image").spec)
    workload = runai_server.workload(workload_name("no-image"))
    workload._warn("ErrImagePull", "nvcr.io/nvidia/nemo:25.07.01: not found")
    workload.enter("Failed", "an image could not be pulled")
    status = (await runai.poll(["no-image"]))["no-image"]
    assert status.state is JobState.FAILED
    assert status.reason == (
        "an image could not be pulled; ErrImagePull: nvcr.io/nvidia/nemo:25.07.01: not found"
    )


@pytest.mark.long
async def test_all_jobs_are_asked_for_in_one_list(runai, runai_server, make_gated):
    gated = [make_gated(f"job-{number}") for number in range(7)]
    for job in gated:
        await runai.submit(job.spec)
    names = [job.spec.name for job in gated]

    async def calls_of_a_poll():
        before = len(runai_server.journal)
        await runai.poll(names)
        return [f"{entry.method} {entry.path}" for entry in runai_server.journal[before:]]

    assert await calls_of_a_poll() == ["GET /workloads"]
    runai_server.page_limit = 3
    assert await calls_of_a_poll() == ["GET /workloads"] * 3
    assert {status.state for status in (await runai.poll(names)).values()} <= {"queued", "running"}
    for job in gated:
        job.let_go()
    ends = [await end_of(runai, name) for name in names]
    assert {end.state for end in ends} == {JobState.SUCCEEDED}
    assert await calls_of_a_poll() == []  # an end is asked for only once


async def test_a_workload_of_that_name_that_is_not_ours_is_left_alone(runai, runai_server, make_gated):
    other = make_gated("other")
    await runai.submit(other.spec)
    await eventually(lambda: other.pid)
    runai_server.workload(workload_name("other")).request["name"] = workload_name("mine")
    with pytest.raises(UserError, match=r"has a workload steptime-mine-\w+ that is not job mine"):
        await runai.submit(make_gated("mine").spec)
    assert psutil.pid_exists(other.pid)


async def test_what_runai_does_not_suspend_is_deleted(runai_with, runai_server, make_gated, monkeypatch):
    monkeypatch.setattr(runai_backend, "_CANCEL_MARGIN_S", 0.3)
    gated = make_gated("stubborn")
    async with runai_with(grace_s=0) as cluster:
        await cluster.submit(gated.spec)
        await eventually(lambda: gated.pid)
        path = "/workloads/trainings/.*/suspend"
        runai_server.fail(Fault("POST", path, "refuse", status=409, times=99))
        await cluster.cancel("stubborn")
        assert not psutil.pid_exists(gated.pid)
        status = (await cluster.poll(["stubborn"]))["stubborn"]
    assert (status.state, status.reason) == (JobState.CANCELLED, "cancelled")
    assert [entry.status for entry in runai_server.calls("DELETE", "/workloads/trainings/.*")] == [202]


async def test_gpus_that_do_not_fill_whole_nodes_are_refused(runai, runai_server, make_spec):
    with pytest.raises(UserError, match="3 GPUs are not a whole number of nodes of 2 GPUs each"):
        await runai.submit(make_spec("odd", "true", slots=3))
    assert not runai_server.workloads


async def test_a_folder_outside_of_the_volume_is_refused(runai, runai_server, make_spec, tmp_path):
    for directory in ("/elsewhere", f"{tmp_path}/../other", f"{tmp_path}-other"):
        with pytest.raises(UserError, match=f"is not on the cluster's volume, which is at {tmp_path}"):
            await runai.submit(make_spec("away", "true").model_copy(update={"directory": directory}))
        with pytest.raises(UserError, match="is not on the cluster's volume"):
            await runai.read(f"{directory}/log")
    assert not runai_server.workloads


@pytest.mark.parametrize("hostile", ["$(touch canary)", "a  b*\n#ü"])
async def test_folders_are_data_and_never_read_by_a_shell(runai, make_spec, tmp_path, hostile):
    folder = f"{tmp_path}/{hostile}"
    spec = make_spec("hostile", "pwd", files={hostile: hostile}).model_copy(
        update={"directory": folder, "log_path": f"{folder}/{hostile}.log"}
    )
    job = await runai.submit(spec)
    assert (await end_of(runai, "hostile")).state is JobState.SUCCEEDED
    assert await runai.read(job.log_path) == f"{folder}\n".encode()
    assert await runai.read(f"{folder}/{hostile}") == hostile.encode()
    assert (await runai.run(["cat", f"{folder}/{hostile}"])).stdout == hostile
    assert not list(tmp_path.rglob("canary"))


async def test_a_command_leaves_nothing_behind(runai, runai_server, tmp_path):
    await runai.run(["true"])
    [workload] = runai_server.workloads.values()
    assert workload.deleted_at is not None
    assert "compute" not in workload.spec
    assert not list((tmp_path / "work" / "clusters" / "dgx" / "jobs").iterdir())


async def test_a_command_whose_workload_others_delete_fails(runai, runai_server, monkeypatch):
    monkeypatch.setattr(runai_command, "_SETTLES_WITHIN_S", -1)
    runai_server.dwell_s = {"Creating": 3600.0}
    running = asyncio.ensure_future(runai.run(["sleep", "600"]))
    await eventually(lambda: runai_server.workloads)
    [workload] = runai_server.workloads.values()
    runai_server.do(workload.delete())
    with pytest.raises(SystemFailure, match="sleep could not run on dgx: gone, it noted no end"):
        await running
