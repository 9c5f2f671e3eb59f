"""Requests that change something, one at a time, where Airflow's database is SQLite.

Airflow's api-server notes in its event loop what a request to its public API changes. SQLite has one writer:
the note waits for a request that has written and not committed, and that one cannot commit without the event
loop. Nothing is answered then until the note's patience is over. Here a request that may write waits, in the
event loop and without holding it up, until the one before has committed.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from airflow import settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_WRITING = ("POST", "PUT", "PATCH", "DELETE")
_WITH_SESSIONS = ("/api/v2/", "/ui/", "/execution/", "/auth/")
"""Not the pages of plugins: they have their own databases, and may ask this api-server themselves."""


def one_writer(app: "ASGIApp") -> "ASGIApp":
    """Return an application that has one writer at a time; the same one on other databases."""
    if settings.get_engine().dialect.name != "sqlite":  # type: ignore[no-untyped-call]
        return app
    writing = asyncio.Lock()

    async def serve(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if not _may_write(scope):
            await app(scope, receive, send)
            return
        # A client that stops in mid-request must hold up nobody.
        read = await _whole(receive)
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(writing)

            async def receive_again() -> "Message":
                return read.pop(0) if read else await receive()

            async def answer(message: "Message") -> None:
                # Committed is before that, and a client may be slow to read.
                await turn.aclose()
                await send(message)

            await app(scope, receive_again, answer)

    return serve


def _may_write(scope: "Scope") -> bool:
    return (
        scope["type"] == "http" and scope["method"] in _WRITING and scope["path"].startswith(_WITH_SESSIONS)
    )


async def _whole(receive: "Receive") -> "list[Message]":
    """The messages of a request, up to its end or the client's."""
    read = [await receive()]
    while read[-1].get("more_body"):
        read.append(await receive())
    return read
