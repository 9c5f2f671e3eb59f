"""Faults between a client and the stand-in, and the journal of all requests."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Literal

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


@dataclass
class Fault:
    """A fault in the next `times` requests that match."""

    method: str
    path: str
    """A regular expression that the whole path after /api/v1 must match."""
    kind: Literal["refuse", "fail after", "alter", "drop after", "hang", "trickle"]
    """Refused without effect; failed after its effect; the true answer, altered by `alter`; connection
    dropped in mid-answer; no answer; an answer without an end."""
    times: int = 1
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "the stand-in was told to fail"
    page: str | bytes | None = None
    """A proxy's page, which is the answer in place of JSON."""
    alter: Callable[[bytes], bytes] = bytes


@dataclass
class Entry:
    """One request and its answer."""

    method: str
    path: str
    query: str
    request: Any
    status: int
    answer: Any


class FaultyDoor:
    """A layer in front of the application that writes the journal and makes faults happen."""

    def __init__(self, app: App) -> None:
        self.faults: list[Fault] = []
        self.draw: Callable[[str, str], Fault | None] | None = None
        """Draws the fault of a request, by its method and path, that none of `faults` matches."""
        self.ahead_s = 0.0
        """Seconds by which the server's clock is ahead."""
        self.journal: list[Entry] = []
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        body = await _body(receive)
        path = scope["path"].removeprefix("/api/v1")
        fault = self._take(scope["method"], path)
        status, headers, content = 0, [], b""

        async def heard() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def note(message: dict[str, Any]) -> None:
            nonlocal status, headers, content
            if message["type"] == "http.response.start":
                status, headers = message["status"], message["headers"]
            else:
                content += message.get("body", b"")

        if fault is None or fault.kind in ("fail after", "alter", "drop after"):
            await self._app(scope, heard, note)
        if fault is not None and fault.kind in ("refuse", "fail after"):
            status = fault.status
            told = json.dumps({"code": status, "message": fault.message})
            page = told if fault.page is None else fault.page
            content = page if isinstance(page, bytes) else page.encode()
        if fault is not None and fault.kind == "alter":
            content = fault.alter(content)
        if fault is not None and fault.kind != "drop after":
            headers = [(name.lower().encode(), value.encode()) for name, value in fault.headers.items()]
            headers += [(b"content-type", b"application/json")]
            if fault.kind != "trickle" and status not in (204, 304):
                headers.append((b"content-length", b"%d" % len(content)))
        if not any(name == b"date" for name, _ in headers):
            headers.append((b"date", formatdate(time.time() + self.ahead_s, usegmt=True).encode()))
        query = scope["query_string"].decode()
        self.journal.append(Entry(scope["method"], path, query, _json(body), status, _json(content)))
        if fault is not None and fault.kind == "hang":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": status or 200, "headers": headers})
        while fault is not None and fault.kind == "trickle":
            await send({"type": "http.response.body", "body": fault.alter(b" "), "more_body": True})
            await asyncio.sleep(0)
        if fault is not None and fault.kind == "drop after":
            # Fewer bytes than announced: the server closes the connection, and the client has half an answer.
            await send({"type": "http.response.body", "body": content[:5], "more_body": True})
            raise ConnectionResetError("the stand-in was told to drop the connection")
        await send({"type": "http.response.body", "body": b"" if status in (204, 304) else content})

    def _take(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.method == method and re.fullmatch(fault.path, path):
                fault.times -= 1
                return fault
        return self.draw(method, path) if self.draw else None


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


def _json(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content
