"""An api-server on SQLite, and requests that change something at the same time."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import airflow_home  # noqa: F401 (before anything imports Airflow)

# isort: split

from airflow import settings

from steptime.airflow.one_writer import one_writer

PROGRAM = """
import asyncio
import threading

import httpx
from airflow import settings
from airflow.api_fastapi.app import create_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import import_all_models
from airflow.models.base import Base
from sqlalchemy import event, text

app = create_app()
import_all_models()
Base.metadata.create_all(settings.engine)
token = app.state.auth_manager.generate_jwt(SimpleAuthManagerUser(username="admin", role="admin"))
written, noted = threading.Event(), threading.Event()


@event.listens_for(settings.engine, "after_cursor_execute")
def hold_the_first(_connection, _cursor, statement, *_):
    if statement.startswith("INSERT INTO slot_pool") and not written.is_set():
        written.set()
        noted.wait(1)


@event.listens_for(settings.engine, "before_cursor_execute")
def see_the_second(_connection, _cursor, statement, *_):
    if statement.startswith("INSERT INTO log") and written.is_set():
        noted.set()


def set_pool(client, name):
    pool = {"name": name, "slots": 1, "description": "", "include_deferred": True}
    return client.patch("/api/v2/pools", json={"actions": [{"action": "create", "entities": [pool]}]})


async def main():
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://airflow", headers=headers) as client:
        first = asyncio.create_task(set_pool(client, "first"))
        assert await asyncio.to_thread(written.wait, 60)
        second = await set_pool(client, "second")
        print((await first).status_code, second.status_code)
    with settings.engine.connect() as connection:
        print(*connection.execute(text("SELECT pool FROM slot_pool ORDER BY pool")).scalars())
        print(connection.execute(text("SELECT count(*) FROM log")).scalar_one())


asyncio.run(main())
"""


@pytest.mark.service
def test_a_change_waits_for_another_without_holding_up_its_commit(tmp_path: Path) -> None:
    """In Airflow's own api-server, which would wait for all of its patience; here that is a second."""
    environment = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path / 'airflow.db'}?timeout=1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the test, long enough for what signs with it " * 2,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-3:] == ["200 200", "first second", "2"]


class Server:
    """An application that answers when it is let, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        self.asked.append(scope["path"])
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})


async def nobody(_: object) -> None:
    """A client that takes its answer."""


def whole() -> Callable[[], Awaitable[Any]]:
    """A client that sends its request at once, in two parts."""
    parts = iter([(b"a", True), (b"b", False)])

    async def receive() -> dict[str, Any]:
        body, more = next(parts)
        return {"type": "http.request", "body": body, "more_body": more}

    return receive


def asked(path: str, method: str = "PATCH") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path}


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says what Airflow's database is."""
    return lambda name: monkeypatch.setattr(
        settings, "get_engine", lambda: SimpleNamespace(dialect=SimpleNamespace(name=name))
    )


@pytest.fixture
async def tasks() -> Any:
    """Starts requests, each up to where it waits; what is left at the end is cancelled."""
    begun: list[asyncio.Task[None]] = []

    async def start(request: Any) -> asyncio.Task[None]:
        begun.append(asyncio.ensure_future(request))
        for _ in range(20):
            await asyncio.sleep(0)
        return begun[-1]

    yield start
    for task in begun:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_who_changes_something_waits_and_who_reads_does_not(database: Any, tasks: Any) -> None:
    database("sqlite")
    server = Server()
    app = one_writer(server)
    await tasks(app(asked("/execution/task-instances/1/run"), whole(), nobody))
    second = await tasks(app(asked("/api/v2/pools"), whole(), nobody))
    await tasks(app(asked("/api/v2/pools", "GET"), whole(), nobody))
    await tasks(app(asked("/steptime/runs", "POST"), whole(), nobody))

    assert server.asked == ["/execution/task-instances/1/run", "/api/v2/pools", "/steptime/runs"]
    server.may_answer.set()
    await second
    assert server.asked[3:] == ["/api/v2/pools"]
    assert server.bodies == [b"ab"] * 4


async def test_other_databases_have_many_writers(database: Any) -> None:
    database("postgresql")
    server = Server()
    assert one_writer(server) is server


async def test_a_client_that_stops_in_mid_request_holds_up_nobody(database: Any, tasks: Any) -> None:
    database("sqlite")
    server = Server()
    server.may_answer.set()
    app = one_writer(server)
    sent = whole()

    async def stop_after_the_first_part() -> Any:
        message = await sent()
        if not message["more_body"]:
            await asyncio.Event().wait()
        return message

    await tasks(app(asked("/api/v2/stopped"), stop_after_the_first_part, nobody))
    await app(asked("/api/v2/pools"), whole(), nobody)
    assert server.asked == ["/api/v2/pools"]


async def test_a_client_that_does_not_take_its_answer_holds_up_nobody(database: Any, tasks: Any) -> None:
    database("sqlite")
    server = Server()
    server.may_answer.set()
    app = one_writer(server)

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    stopped = await tasks(app(asked("/api/v2/stopped"), whole(), never))
    await app(asked("/api/v2/pools"), whole(), nobody)
    assert not stopped.done()
    assert server.asked == ["/api/v2/stopped", "/api/v2/pools"]


async def test_a_request_that_fails_or_is_given_up_holds_up_nobody(database: Any, tasks: Any) -> None:
    database("sqlite")
    server = Server()

    async def fails_first(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/api/v2/fails":
            raise ValueError("no such pool")
        await server(scope, receive, send)

    app = one_writer(fails_first)
    with pytest.raises(ValueError, match="no such pool"):
        await app(asked("/api/v2/fails"), whole(), nobody)
    given_up = await tasks(app(asked("/api/v2/given-up"), whole(), nobody))
    given_up.cancel()
    server.may_answer.set()
    await app(asked("/api/v2/pools"), whole(), nobody)
    assert server.asked == ["/api/v2/given-up", "/api/v2/pools"]


def test_airflow_has_it_from_the_plugin() -> None:
    from steptime.airflow.plugin import SteptimePlugin

    assert [entry["middleware"] for entry in SteptimePlugin.fastapi_root_middlewares] == [one_writer]
