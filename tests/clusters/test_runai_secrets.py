"""The application's secret and its tokens stay in memory and in the requests that need them."""

import asyncio
import logging
import traceback

import psutil
import pytest
from stand_ins.runai import Fault

from steptime.clusters.connections import Connection
from steptime.clusters.runai.client import RunaiClient

from .conftest import end_of, eventually


def processes():
    """Return the arguments and environment of every process that this user may inspect."""
    seen = []
    for process in psutil.process_iter():
        try:
            seen += [*process.cmdline(), *(f"{name}={value}" for name, value in process.environ().items())]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return "\n".join(seen)


def texts(error):
    """Return all that a traceback shows, with the causes of the error."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.long
async def test_the_secret_is_in_no_text(
    runai,
    runai_server,
    runai_connections,
    make_gated,
    caplog,
    tmp_path,
):
    for library in (None, "httpx", "httpcore"):  # Airflow, if loaded by another test, quiets them
        caplog.set_level(logging.DEBUG, library)
    seen = {}
    gated = make_gated("quiet", first="env; cat /proc/self/environ")
    job = await runai.submit(gated.spec)
    given = dict(runai_server.tokens)
    await eventually(lambda: gated.pid)
    seen["processes while the job runs"] = processes()
    command = asyncio.create_task(runai.run(["env"]))
    await eventually(lambda: runai_server.calls("GET", "/workloads/.*") or command.done())
    seen["processes while a command runs"] = processes()
    seen["output of a command"] = (await command).stdout
    runai_server.revoke_tokens()  # the refusal contains the token
    seen["status"] = repr(await runai.poll(["quiet"]))
    gated.let_go()
    seen["end"] = repr(await end_of(runai, "quiet"))
    right = await runai_connections("runai")
    wrong = Connection(name="runai", kind="runai", host=right.host, login="another", password=right.password)
    async with RunaiClient(wrong) as client:
        with pytest.raises(Exception, match="no token") as refused:
            await client.project("llm")
    assert runai_server.secret in str(runai_server.journal[-1].answer)  # the answer contains the secret
    [token] = runai_server.tokens
    told = f"{runai_server.secret} and {token}"
    runai_server.fail(Fault("GET", "/workloads", "refuse", status=400, message=told))
    with pytest.raises(Exception, match=r"400 \(\*\*\* and \*\*\*\)") as echoed:
        await runai.find("nobody")
    given |= runai_server.tokens
    seen |= {
        "job": job.model_dump_json(),
        "errors": texts(refused.value) + texts(echoed.value),
        "log": caplog.text + "".join(repr(vars(record)) for record in caplog.records),
        "repr": f"{runai!r} {runai._client!r} {runai._config!r} {right!r} {vars(runai)}",
        "files": "\n".join(
            file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()
        ),
    }
    assert len(given) == 2
    assert "HTTP Request" in seen["log"]  # the log was captured
    assert "STEPTIME_JOB_ID" in seen["processes while the job runs"]
    told = [
        f"{what} in {where}"
        for where, text in seen.items()
        for what, secret in [("secret", runai_server.secret), *(("token", token) for token in given)]
        if secret in text
    ]
    assert not told
