"""Faults drawn by seed for every request: what proxies, redirects and cut answers make of Run:ai's words."""

import json
import random
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from stand_ins.runai.faults import Fault

_PAGES: tuple[str | bytes, ...] = (
    "default backend - 404",
    "<html><body>Log in</body></html>",
    "",
    "null",
    "[]",
    "{}",
    '"maintenance"',
    '{"message": "no Route matched with those values"}',
    '{"error": "not_found", "error_description": "gone"}',
    '{"code": "404", "message": "code is a text"}',
    '{"code": 404, "message": null}',
    '{"workloads": null, "projects": null, "events": null}',
    '{"workloads": {}, "projects": {}, "accessToken": 1}',
    "[" * 100_000,
    b"\xff\xfe{\x00",
    b"\x1f\x8b\x08 no gzip",
)
_STATUSES = (200, 201, 202, 204, 206, 301, 302, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 410, 413)
_STATUSES += (418, 421, 425, 429, 499, 500, 502, 503, 504, 520)
_RETRY_AFTER = ("0", "7", "-5", "1.5", "", "abc", "99999999", "9" * 400, "1e400", "nan", "Fri, 31 Dec 99999")
_RETRY_AFTER += ("Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 01 Jan 2026 00:00:00", "01 Jan 0001 00:00:00 +2359")
_DATES = ("", "now", "Thu, 01 Jan 1970 00:00:00 -0000", "Fri, 99 Foo 2026 00:00:00 GMT")
_REFUSALS = (400, 401, 403, 409, 422)


class Chaos:
    """Draws a fault for a `share` of the requests: none is a false statement in Run:ai's own form."""

    def __init__(self, chance: random.Random, share: float, *, is_submitted: Callable[[], bool]) -> None:
        self.drawn: list[str] = []
        self.share = share
        self._chance, self._is_submitted = chance, is_submitted

    def __call__(self, method: str, path: str) -> Fault | None:
        """Return the fault of a request, or None."""
        if self._chance.random() >= self.share:
            return None
        kinds = (self._page, self._failure, self._alteration, self._cut, self._refusal)
        fault = self._chance.choice(kinds)(method, path)
        if self._chance.random() < 0.1:
            fault.headers["Date"] = self._chance.choice(_DATES)
        self.drawn.append(
            f"{method} {path}: {fault.kind} {fault.status} {str(fault.page)[:40]} {fault.headers}"
        )
        return fault

    def _page(self, method: str, path: str) -> Fault:
        kind = self._chance.choice(("refuse", "fail after"))
        status = self._chance.choice(_STATUSES)
        headers = {"Location": "https://127.0.0.1:9/login"} if status // 100 == 3 else {}
        return self._busy(
            Fault(method, path, kind, status=status, page=self._chance.choice(_PAGES), headers=headers)
        )

    def _failure(self, method: str, path: str) -> Fault:
        """Return an error of the server in Run:ai's own form; 429 says that the request had no effect."""
        status = self._chance.choice((429, 500, 502, 503, 504))
        kind = "refuse" if status == 429 else self._chance.choice(("refuse", "fail after"))
        return self._busy(Fault(method, path, kind, status=status))

    def _busy(self, fault: Fault) -> Fault:
        if self._chance.random() < 0.3:
            later = formatdate(2_000_000_000)  # ends in -0000
            fault.headers["Retry-After"] = self._chance.choice((*_RETRY_AFTER, later))
        return fault

    def _cut(self, method: str, path: str) -> Fault:
        return Fault(method, path, "drop after")

    def _refusal(self, method: str, path: str) -> Fault:
        """Return a refusal in Run:ai's own form, as when a role is away for a while.

        The first creation is not refused: that would be the user's to mend.
        """
        is_creation = method == "POST" and path in ("/workloads/trainings", "/workloads/distributed")
        if is_creation and not self._is_submitted():
            return self._cut(method, path)
        status = 401 if path == "/token" else self._chance.choice(_REFUSALS)
        if status == 409 and "suspend" in path:
            status = 403  # 409 would be false: it can be suspended
        return Fault(method, path, "refuse", status=status, message="not now")

    def _alteration(self, method: str, path: str) -> Fault:
        ways: tuple[Callable[[bytes], bytes], ...] = (
            self._without_a_field,
            self._with_another_type,
            self._without_an_end,
            lambda content: content[: len(content) // 2],
            lambda content: content + b"<!-- proxy -->",
            lambda content: b"[" + content + b"]",
        )
        return Fault(method, path, "alter", alter=self._chance.choice(ways))

    def _without_a_field(self, content: bytes) -> bytes:
        return self._changed(content, lambda fields, name: fields.pop(name))

    def _with_another_type(self, content: bytes) -> bytes:
        value = self._chance.choice((None, 17, "", [], {}, [None], {"a": []}, True, float("nan")))
        return self._changed(content, lambda fields, name: fields.update({name: value}))

    def _changed(self, content: bytes, change: Callable[[dict[str, Any], str], Any]) -> bytes:
        """Return an answer in which one field that steptime needs is changed."""
        said = json.loads(content or b"{}")
        needed = [(fields, name) for fields in _objects(said) for name in sorted(_NEEDED & fields.keys())]
        if needed:
            change(*self._chance.choice(needed))
        return json.dumps(said).encode()

    def _without_an_end(self, content: bytes) -> bytes:
        said = json.loads(content or b"{}")
        if "workloads" in said:
            said["next"] = self._chance.choice((-1, 0, 1, "1", 10**30, self._chance.randrange(10**9)))
        return json.dumps(said).encode()


_NEEDED = frozenset(
    (
        "accessToken",
        "id",
        "name",
        "clusterId",
        "workloadId",
        "phase",
        "workloads",
        "projects",
        "events",
        "spec",
    )
)


def _objects(said: Any) -> list[dict[str, Any]]:
    """Return all objects in an answer, outermost first."""
    if isinstance(said, dict):
        return [said, *(found for value in said.values() for found in _objects(value))]
    return [found for value in said for found in _objects(value)] if isinstance(said, list) else []
