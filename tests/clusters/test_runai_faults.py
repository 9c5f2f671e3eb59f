"""Faults of network, tokens and a busy or failing Run:ai: a job survives, or one sentence says why not."""

import asyncio
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from own_clock import waits_over_at_once
from stand_ins.runai import Fault, RunaiStandIn

from steptime import waiting
from steptime.clusters.base import JobState
from steptime.clusters.connections import Connection
from steptime.clusters.runai import client as runai_client
from steptime.clusters.runai import cluster as runai_backend
from steptime.clusters.runai.client import RunaiClient, base_url
from steptime.clusters.runai.workloads import workload_name
from steptime.errors import LoginRefused, OutOfReach, SubmitLimit, SystemFailure, UserError

from .conftest import end_of

CREATE = "/workloads/trainings"


@pytest.fixture
async def impatient(runai_connections):
    """Yield a client that gives up after five seconds."""
    async with RunaiClient(await runai_connections("runai"), patience_s=5) as client:
        yield client


@pytest.fixture
def waits(monkeypatch):
    """Make clients' pauses end at once, on a clock of their own; return the pauses in seconds."""
    return waits_over_at_once(monkeypatch)


@pytest.mark.long
async def test_tokens_that_are_refused_in_mid_run_are_replaced_once_for_all_callers(
    runai, runai_server, make_gated
):
    gated = make_gated("long")
    await runai.submit(gated.spec)
    runai_server.revoke_tokens()
    answers = await asyncio.gather(*(runai.poll(["long"]) for _ in range(5)))
    assert all(answer["long"].state.is_live for answer in answers)
    assert len(runai_server.calls("POST", "/token")) == 2
    gated.let_go()
    assert (await end_of(runai, "long")).state is JobState.SUCCEEDED


@pytest.mark.long
async def test_a_workload_beyond_a_quota_may_be_submitted_later(runai, runai_server, make_spec):
    message = "pods is forbidden: exceeded quota: gpus, requested: 1, used: 8, limited: 8"
    runai_server.fail(Fault("POST", CREATE, "refuse", status=403, message=message))
    with pytest.raises(SubmitLimit, match="exceeded quota: gpus, requested: 1, used: 8, limited: 8"):
        await runai.submit(make_spec("later", "true"))
    await runai.submit(make_spec("later", "true"))
    assert (await end_of(runai, "later")).state is JobState.SUCCEEDED
    assert [entry.status for entry in runai_server.calls("POST", CREATE)] == [403, 202]


@pytest.mark.parametrize(("lifetime_s", "before_s", "after_s"), [(3600, 3530, 3545), (100, 70, 80)])
async def test_a_token_is_replaced_before_it_runs_out(
    runai_connections, runai_server, monkeypatch, lifetime_s, before_s, after_s
):
    """The client's clock is put forward; without the replacement the server would refuse an expired token."""
    ahead_s = 0.0
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + ahead_s)
    monkeypatch.setattr("steptime.clusters.runai.client.time", clock)
    runai_server.token_lifetime_s = lifetime_s
    async with RunaiClient(await runai_connections("runai")) as client:
        for ahead_s, tokens in ((0, 1), (before_s, 1), (after_s, 2)):  # noqa: B007 - the clock's
            await client.workloads([])
            assert len(runai_server.calls("POST", "/token")) == tokens
    assert 401 not in {entry.status for entry in runai_server.journal}


async def test_a_refused_login_is_named_and_its_secret_is_not_told(runai_connections, runai_server):
    right = await runai_connections("runai")
    wrong = Connection(name="runai", kind="runai", host=right.host, login="me", password="hush-hush")
    async with RunaiClient(wrong) as client:
        with pytest.raises(
            LoginRefused, match=r"gives application 'me' no token \(401\).* connection 'runai'"
        ) as no:
            await client.project("llm")
    assert "hush" in str(runai_server.journal[-1].answer)  # the server repeated it
    assert "hush" not in str(no.value)


async def test_an_application_without_a_role_is_told_so(runai, runai_server, make_spec):
    runai_server.fail(Fault("POST", CREATE, "refuse", status=403, message="no permission"))
    with pytest.raises(UserError, match=r"403 \(no permission\): give application 'steptime-tests' a role"):
        await runai.submit(make_spec("forbidden", "true"))


@pytest.mark.long
@pytest.mark.parametrize(("method", "path"), [("GET", "/workloads"), ("POST", CREATE)])
async def test_a_busy_server_is_given_the_time_it_asks_for(
    runai,
    runai_server,
    make_spec,
    waits,
    method,
    path,
):
    runai_server.fail(Fault(method, path, "refuse", status=429, headers={"Retry-After": "7"}))
    await runai.submit(make_spec("patient", "true"))
    assert waits == [7]
    assert len(runai_server.calls("POST", CREATE)) == (2 if method == "POST" else 1)  # refused, so repeated
    assert (await end_of(runai, "patient")).state is JobState.SUCCEEDED
    assert len(runai_server.workloads) == 1


async def test_a_submitted_job_that_cannot_be_recorded_is_named(runai, runai_server, make_spec, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runai_backend.JobNotes, "write_submitted", full)
    with pytest.raises(SystemFailure, match=r"job full was submitted, but .* recorded .*: .*No space left"):
        await runai.submit(make_spec("full", "true"))
    assert len(runai_server.workloads) == 1


async def test_a_server_that_asks_for_too_much_time_is_not_waited_for(impatient, runai_server):
    runai_server.fail(Fault("GET", "/workloads", "refuse", status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(OutOfReach, match=r"answered GET /workloads with 429 .*; given up after 5 s"):
        await impatient.workloads([])
    assert len(runai_server.calls("GET", "/workloads")) == 1


@pytest.mark.long
async def test_a_failing_server_is_asked_again_and_then_given_up(impatient, runai_server, waits):
    runai_server.fail(Fault("GET", "/workloads", "refuse", status=502))
    assert (await impatient.workloads([])).workloads == ()
    waits.clear()
    runai_server.fail(Fault("GET", "/workloads", "refuse", times=99))
    with pytest.raises(OutOfReach, match=r"503 .*; given up after 5 s"):
        await impatient.workloads([])
    assert 99 - runai_server.door.faults[-1].times == 1 + len(waits)
    least_pauses = [0.5 * 2**number for number in range(len(waits) + 1)]
    assert all(least <= wait <= 1.25 * least for wait, least in zip(waits, least_pauses, strict=False)), waits
    assert sum(waits) <= 5 < sum(waits) + 1.25 * least_pauses[-1]


@pytest.mark.usefixtures("runai_server")
async def test_a_workload_that_does_not_exist_is_none(runai_connections):
    unknown = "0f8fad5b-d9cb-469f-a165-70867728950e"
    async with RunaiClient(await runai_connections("runai")) as client:
        assert await client.workload(unknown) is None
        assert await client.details("distributed", unknown) is None


@pytest.mark.long
async def test_a_server_that_never_answers_is_asked_again(runai_server, runai_connections, monkeypatch):
    runai_server.fail(Fault("GET", "/workloads", "hang"))
    async with RunaiClient(await runai_connections("runai")) as client:
        await client.log_in()
        http = client._client()
        usual = http.timeout
        assert usual.read == runai_client._TIMEOUT_S

        def note(*_):
            http.timeout = usual  # a busy machine answers late

        monkeypatch.setattr(runai_client._log, "info", note)
        http.timeout = 0.1
        assert (await client.workloads([])).workloads == ()
    assert len(runai_server.calls("GET", "/workloads")) == 2


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fail after", "drop after"])
async def test_a_job_whose_submit_was_not_answered_is_found_and_not_submitted_twice(
    runai, runai_server, make_spec, *, kind
):
    runai_server.fail(Fault("POST", CREATE, kind))
    job = await runai.submit(make_spec("unclear", "echo once >> count"))
    assert (await end_of(runai, "unclear")).state is JobState.SUCCEEDED
    assert (Path(job.directory) / "count").read_text() == "once\n"
    assert len(runai_server.calls("POST", CREATE)) == 1


@pytest.mark.long
async def test_a_submit_that_had_no_effect_fails_and_can_be_repeated(
    runai, runai_server, make_spec, monkeypatch
):
    monkeypatch.setattr(runai_backend, "_APPEARS_WITHIN_S", 0.1)
    runai_server.fail(Fault("POST", CREATE, "refuse"))
    with pytest.raises(SystemFailure, match="may or may not have been submitted"):
        await runai.submit(make_spec("unclear", "true"))
    assert not runai_server.workloads
    await runai.submit(make_spec("unclear", "true"))
    assert len(runai_server.workloads) == 1


@pytest.mark.long
async def test_who_comes_back_without_a_note_finds_the_job_where_it_runs(
    runai,
    runai_server,
    runai_with,
    make_gated,
    tmp_path,
):
    """A worker was killed after making the workload and before noting it."""
    gated = make_gated("orphan", slots=2)
    first = await runai.submit(gated.spec)
    (tmp_path / "work/clusters/dgx/jobs/orphan/submitted.json").unlink()
    moved = gated.spec.model_copy(update={"directory": str(tmp_path / "another")})
    async with runai_with() as later:
        assert await later.submit(moved) == first
    assert len(runai_server.calls("POST", CREATE)) == 1
    assert not (tmp_path / "another").exists()


@pytest.mark.long
async def test_two_who_submit_at_once_get_one_job(runai_server, runai_with, make_spec):
    specs = [make_spec("raced", f"echo {number} >> $(dirname $PWD)/ran") for number in range(4)]
    clusters = [runai_with() for _ in specs]
    for cluster in clusters:
        await cluster.__aenter__()
    jobs = await asyncio.gather(
        *(cluster.submit(spec) for cluster, spec in zip(clusters, specs, strict=True))
    )
    assert (await end_of(clusters[0], "raced")).state is JobState.SUCCEEDED
    for cluster in clusters:
        await cluster.__aexit__()
    assert len(set(jobs)) == 1
    assert len(runai_server.named(workload_name("raced"))) == 1
    assert len((Path(jobs[0].directory).parent / "ran").read_text().splitlines()) == 1


@pytest.mark.parametrize("status", [200, 302, 400, 404, 409])
async def test_a_page_in_place_of_an_answer_is_a_proxys_and_asked_again(
    impatient, runai_server, waits, status
):
    page = {"status": status, "page": "<html>Log in</html>"}
    runai_server.fail(Fault("GET", "/workloads", "refuse", **page))
    assert (await impatient.workloads([])).workloads == ()
    runai_server.fail(Fault("GET", "/workloads", "refuse", times=99, **page))
    with pytest.raises(OutOfReach, match=rf"{status} and no JSON: is it Run:ai, or a proxy\?; given up"):
        await impatient.workloads([])


@pytest.mark.parametrize("status", [200, 403, 404])
async def test_a_page_in_place_of_a_token_says_nothing_about_the_login(
    impatient, runai_server, waits, status
):
    runai_server.fail(
        Fault("POST", "/token", "refuse", status=status, page="default backend - 404", times=99)
    )
    with pytest.raises(OutOfReach, match=rf"gives no token \({status}\); given up"):
        await impatient.workloads([])


@pytest.mark.parametrize(
    "content", ["{}", '{"workloads": null}', '{"workloads": [1]}', '{"workloads": [{"id": "a"}]}']
)
async def test_an_answer_of_another_shape_is_asked_for_again(impatient, runai_server, waits, content):
    runai_server.fail(Fault("GET", "/workloads", "refuse", status=200, page=content, times=99))
    with pytest.raises(OutOfReach, match=r"answered GET /workloads with 200 and workloads.*: is it Run:ai"):
        await impatient.workloads([])


async def test_an_answer_without_an_end_is_given_up(
    impatient,
    runai_server,
    waits,
    monkeypatch,
):
    monkeypatch.setattr(runai_client, "_BYTES_AT_MOST", 1000)
    runai_server.fail(Fault("GET", "/workloads", "trickle", times=99))
    with pytest.raises(OutOfReach, match=r"broke off GET /workloads \(ReadError\); given up after 5 s"):
        await impatient.workloads([])
    monkeypatch.setattr(runai_client, "_ANSWER_WITHIN_S", 0.01)
    runai_server.fail(Fault("GET", "/workloads/a", "trickle", alter=lambda _: b"", times=99))
    with pytest.raises(OutOfReach, match=r"broke off GET /workloads/a \(ReadTimeout\); given up after 5 s"):
        await impatient.workload("a")


@pytest.mark.long
@pytest.mark.parametrize("page", ["default backend - 404", None], ids=["a proxy's page", "Run:ai's words"])
async def test_a_workload_that_one_answer_does_not_know_is_ended_all_the_same(
    runai,
    runai_server,
    make_gated,
    monkeypatch,
    page,
):
    """A proxy's 404 counted as the end of the workload, which went on."""
    monkeypatch.setattr(runai_backend, "_LISTED_WITHIN_S", -60.0)
    gated = make_gated("behind-a-proxy")
    await runai.submit(gated.spec)
    runai_server.fail(Fault("GET", "/workloads/[^/]+", "refuse", status=404, page=page, times=2))

    await runai.cancel("behind-a-proxy")

    assert len(runai_server.calls("POST", f"{CREATE}/[^/]+/suspend")) == 1
    assert (await end_of(runai, "behind-a-proxy")).state is JobState.CANCELLED


@pytest.mark.long
async def test_a_gateways_json_does_not_make_a_workload_gone(runai, runai_server, make_gated, waits):
    """Its 404 and its empty object were taken for Run:ai's, and the job's state was unknown."""
    runai_server.door.ahead_s = 3600
    await runai.submit(make_gated("behind-a-gateway").spec)
    message = '{"message": "no Route matched with those values"}'
    lists = Fault("GET", "/workloads", "refuse", status=200, page="{}", times=1)
    runai_server.fail(Fault("GET", "/workloads/[^/]+", "refuse", status=404, page=message, times=99))
    for fault in (lists, Fault("GET", "/workloads", "refuse", status=404, page=message, times=99)):
        runai_server.fail(fault)
    with pytest.raises(OutOfReach, match="is it Run:ai, or a proxy"):
        await runai.poll(["behind-a-gateway"])


@pytest.mark.long
async def test_a_job_that_lists_do_not_show_yet_is_cancelled(
    runai_with, runai_server, make_gated, monkeypatch
):
    """Its creation took effect and was not answered, so its cancellation found nothing to end."""
    waits_over_at_once(monkeypatch, waiting, runai_backend)
    runai_server.clock = lambda: float(runai_backend.time.time())
    runai_server.hidden_s = 30
    runai_server.fail(Fault("POST", CREATE, "fail after", status=502))
    async with runai_with(poll_interval_s=1) as cluster:
        with pytest.raises(SystemFailure, match="may or may not have been submitted"):
            await cluster.submit(make_gated("unlisted").spec)
        await cluster.cancel("unlisted")
    assert runai_server.workload(workload_name("unlisted")).phase == "Stopped"


async def test_a_refusal_after_an_unclear_submission_is_not_the_users_error(
    runai_with, runai_server, make_spec, monkeypatch
):
    """The job was written off as refused, though an earlier request had started it."""
    waits_over_at_once(monkeypatch, waiting, runai_backend)
    runai_server.hidden_s = 3600
    runai_server.fail(Fault("POST", CREATE, "fail after", status=502))
    runai_server.fail(Fault("POST", CREATE, "refuse", status=403, message="no permission"))
    for message in (
        "may or may not have been submitted",
        r"submitted .* before.*no permission",
    ):
        async with runai_with() as cluster:
            with pytest.raises(SystemFailure, match=message):
                await cluster.submit(make_spec("twice", "true"))
    assert len(runai_server.workloads) == 1


async def test_a_pause_until_a_date_is_kept(impatient, runai_server, waits):
    until = format_datetime(datetime.fromtimestamp(time.time() + 4, UTC), usegmt=True)
    runai_server.fail(Fault("GET", "/workloads", "refuse", status=429, headers={"Retry-After": until}))
    assert (await impatient.workloads([])).workloads == ()
    [wait] = waits
    assert 2 < wait <= 4


@pytest.mark.parametrize("written", ["Thu, 01 Jan 1970 00:00:00 -0000", "nan", "-5", "Fri, 31 Dec 99999", ""])
async def test_a_pause_that_makes_no_sense_is_ignored(impatient, runai_server, waits, written):
    runai_server.fail(
        Fault("GET", "/workloads", "refuse", status=429, headers={"Retry-After": written, "Date": written})
    )
    assert (await impatient.workloads([])).workloads == ()
    assert len(waits) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", CREATE, "fail after", status=502),
        Fault("POST", CREATE, "refuse", status=404, page="default backend - 404"),
        Fault("POST", CREATE, "refuse", status=200, page="{}"),
    ],
    ids=["a proxy's 502", "a proxy's page", "no id"],
)
async def test_what_may_have_been_submitted_is_never_the_users_error(
    runai,
    runai_server,
    make_spec,
    monkeypatch,
    fault,
):
    """The token endpoint refused after a creation that took effect, and the job was written off."""
    monkeypatch.setattr(runai_backend, "_APPEARS_WITHIN_S", 0.1)
    create = runai._client.create

    async def create_and_lose_the_login(*arguments):
        runai_server.fail(fault)
        try:
            return await create(*arguments)
        finally:
            runai_server.revoke_tokens()
            runai_server.fail(Fault("POST", "/token", "refuse", status=401))

    monkeypatch.setattr(runai._client, "create", create_and_lose_the_login)
    with pytest.raises(LoginRefused, match="gives application"):
        await runai.submit(make_spec("unclear", "true"))


@pytest.mark.parametrize(("method", "path"), [("POST", "/token"), ("GET", "/workloads")])
async def test_no_redirect_takes_a_secret_or_a_token_to_another_server(
    impatient,
    runai_server,
    waits,
    tmp_path,
    method,
    path,
):
    with RunaiStandIn(tmp_path / "elsewhere", gpus=2).running() as elsewhere:
        there = {"Location": f"{elsewhere.url}/api/v1{path}"}
        runai_server.fail(Fault(method, path, "refuse", status=307, headers=there, times=99))
        with pytest.raises(OutOfReach, match="307"):
            await impatient.workloads([])
        assert elsewhere.journal == []


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("nvidia.run.ai", None, "https://nvidia.run.ai/api/v1"),
        (" nvidia.run.ai ", 8443, "https://nvidia.run.ai:8443/api/v1"),
        ("https://nvidia.run.ai:444/", 8443, "https://nvidia.run.ai:444/api/v1"),
        ("https://gate/runai/api/v1/", None, "https://gate/runai/api/v1"),
        ("http://[::1]:8000", None, "http://[::1]:8000/api/v1"),
    ],
)
def test_an_address_may_be_a_name_or_a_whole_url(host, port, url):
    assert base_url(Connection(name="runai", kind="runai", host=host, port=port)) == url


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("", "is empty: write Run:ai's address"),
        ("http://nvidia.run.ai", "would send the secret unencrypted"),
        ("https:///api/v1", "is not an address"),
        ("https://me:hush@nvidia.run.ai", "the login into the connection's fields"),
    ],
)
def test_an_address_that_cannot_be_is_refused(host, message):
    with pytest.raises(UserError, match=message) as refused:
        base_url(Connection(name="runai", kind="runai", host=host))
    assert "hush" not in str(refused.value)
