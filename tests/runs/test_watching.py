"""Many triggers share one poll per interval."""

import asyncio

import pytest

from steptime.clusters.base import JobState, JobStatus
from steptime.clusters.connections import no_connections
from steptime.errors import SystemFailure
from steptime.runs.following import watch

from .scripted_cluster import ScriptedCluster

RUNNING, DONE = JobStatus(state=JobState.RUNNING), JobStatus(state=JobState.SUCCEEDED)


def use(cluster, monkeypatch):
    monkeypatch.setattr("steptime.runs.following.open_cluster", lambda *_: cluster)
    return cluster


async def wait_for(job_name):
    async with watch("local", no_connections) as shared:
        while True:
            _, status = await shared.next_status(job_name)
            if not status.state.is_live:
                return status


@pytest.mark.long
async def test_a_thousand_waits_share_each_poll_and_one_connection(home, monkeypatch):
    cluster = use(ScriptedCluster(RUNNING, RUNNING, DONE), monkeypatch)

    ended = await asyncio.gather(*(wait_for(f"job-{number}") for number in range(1000)))

    assert {status.state for status in ended} == {JobState.SUCCEEDED}
    assert [len(names) for names in cluster.polls] == [1000, 1000, 1000]
    assert (cluster.opened, cluster.closed) == (1, 1)


async def test_who_comes_during_a_poll_is_answered_by_the_next(home, monkeypatch):
    cluster = use(ScriptedCluster(DONE), monkeypatch)
    late = []
    poll = cluster.poll

    async def poll_while_another_comes(names):
        if not late:
            late.append(asyncio.create_task(wait_for("late")))
            await asyncio.sleep(0)  # lets it register
        return await poll(names)

    monkeypatch.setattr(cluster, "poll", poll_while_another_comes)
    assert await wait_for("early") == DONE
    assert await late[0] == DONE
    assert [tuple(names) for names in cluster.polls] == [("early",), ("late",)]


async def test_a_failed_poll_is_told_to_everybody_and_the_next_one_opens_anew(home, monkeypatch):
    cluster = use(ScriptedCluster(ConnectionError("no route to host"), DONE), monkeypatch)

    async with watch("local", no_connections) as shared:
        failures = await asyncio.gather(
            *(shared.next_status(name) for name in ("a", "b")), return_exceptions=True
        )
        assert [type(failure) for failure in failures] == [SystemFailure, SystemFailure]
        assert {str(failure) for failure in failures} == {"no route to host"}
        assert {type(failure.__cause__) for failure in failures} == {ConnectionError}
        _, status = await shared.next_status("a")

    assert status == DONE
    assert cluster.opened == cluster.closed == 2


async def test_a_cancelled_wait_leaves_the_others_alone(home, monkeypatch):
    cluster = use(ScriptedCluster(RUNNING), monkeypatch)
    waits = [asyncio.create_task(wait_for(name)) for name in ("a", "b")]
    while not cluster.polls:  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    waits[0].cancel("user action")
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await waits[0]
    cluster.answers = [DONE]

    assert cancelled.value.args == ("user action",), "by these words Airflow knows to call on_kill"
    assert await waits[1] == DONE


async def test_the_last_to_leave_closes_and_the_next_opens_again(home, monkeypatch):
    cluster = use(ScriptedCluster(DONE), monkeypatch)
    await wait_for("a")
    await wait_for("b")

    assert cluster.opened == cluster.closed == 2


async def test_a_broken_configuration_is_told_to_those_who_wait(home):
    async with watch("elsewhere", no_connections) as shared:
        with pytest.raises(SystemFailure, match="unknown cluster 'elsewhere'"):
            await shared.next_status("a")
