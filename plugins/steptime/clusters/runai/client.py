"""A thin asynchronous client of Run:ai's REST API, version 1: the few endpoints that a benchmark needs.

Run:ai publishes a generated Python client, which repeats a POST after a 5xx answer: a workload could be made
twice. Here a request that may have taken effect is repeated only if repeating it changes nothing. Creating
a workload is not repeated: if its outcome is not known, it raises `UnclearAnswer`, and the caller looks the
workload up by name.

Only answers in Run:ai's own form, JSON objects, count. A page with status 404 is from a proxy, and says
nothing about a workload.

The secret and the tokens never appear in its log lines and error messages.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import SplitResult, urlsplit

import httpx
from tenacity import RetryCallState

from steptime.clusters.connections import Connection
from steptime.errors import OutOfReach, SubmitLimit, SystemFailure, UserError, one_line
from steptime.waiting import retrying

Done = TypeVar("Done")

TRAININGS, DISTRIBUTED = "trainings", "distributed"
"""The kinds of workloads, as in the API's URLs: one pod, or a master with its workers."""

_PAGE = 500
"""Workloads per request: the most that the API allows."""
_PAGES_AT_MOST = 1000
_TIMEOUT_S = 30.0
_RENEW_BEFORE_S = 60.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_log = logging.getLogger(__name__)

Workload = Mapping[str, Any]
"""A workload as the API describes it."""


class UnclearAnswer(SystemFailure):
    """It is unknown whether a request took effect: the connection broke, or the server failed."""


class _TryAgain(SystemFailure):
    """The request had no effect, or may be repeated."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NameTaken(UserError):
    """The project already has a workload of that name."""


class Project(NamedTuple):
    """The Run:ai project in which workloads are created."""

    id: str
    cluster_id: str


class Listing(NamedTuple):
    """Workloads as Run:ai lists them, and the server's clock at that time (Unix time in seconds)."""

    workloads: tuple[Workload, ...]
    at: float


class _Reply(NamedTuple):
    """An answer of Run:ai: its status, its JSON object, and the server's clock (Unix time in seconds)."""

    status_code: int
    content: Mapping[str, Any]
    """Empty if the answer was empty, which only `suspend` and `delete` accept."""
    at: float


class RunaiClient:
    """A client of one Run:ai control plane, logged in as one application; use it with `async with`.

    Every request raises UserError if Run:ai refuses it, and OutOfReach if Run:ai does not answer in time.
    """

    def __init__(self, connection: Connection, *, patience_s: float = 60) -> None:
        """`patience_s`: how long one call may go on trying before it fails."""
        self.base_url = base_url(connection)
        self._connection = connection
        self._patience_s = patience_s
        self._http: httpx.AsyncClient | None = None
        self._token = ""
        self._token_ends = 0.0
        self._token_lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"RunaiClient({self.base_url!r})"

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(
            timeout=_TIMEOUT_S,
            limits=httpx.Limits(max_connections=8),
            follow_redirects=False,  # a redirect could carry the token to another host
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def log_in(self) -> None:
        """Check that the application can get a token. Raises UserError if it is refused."""
        await self._retry(self._valid_token)

    async def project(self, name: str) -> Project:
        """Return the project of that name. Raises UserError if the application cannot see it."""
        answer = await self._call("GET", "/org-unit/projects", params={"filterBy": f"name=={name}"})
        matching = [project for project in self._items(answer, "projects") if project.get("name") == name]
        if not matching:
            raise UserError(
                f"Run:ai at {self.base_url} shows no project '{one_line(name)}': write its name as under "
                "Organization, Projects, and give the application a role in it."
            )
        ids = [matching[0].get(field) for field in ("id", "clusterId")]
        if None in ids:
            raise SystemFailure(f"Run:ai at {self.base_url} shows project '{one_line(name)}' without an id.")
        return Project(*map(str, ids))

    async def create(self, kind: str, request: Mapping[str, Any]) -> Workload:
        """Create a workload.

        Raises:
            NameTaken: the project already has a workload of this name.
            UnclearAnswer: the workload may or may not have been created.
            SubmitLimit: the resource quota of the project's namespace is used up.
            UserError: Run:ai refuses the request.
        """
        answer = await self._call("POST", f"/workloads/{kind}", json=request, repeatable=False)
        if not answer.content.get("workloadId"):
            raise UnclearAnswer(f"Run:ai at {self.base_url} answered POST /workloads/{kind} without an id")
        return answer.content

    async def workloads(self, filters: Sequence[str]) -> Listing:
        """Return all workloads that pass every filter, such as `name==mine`, however many pages they fill.

        Raises SystemFailure if there are more than 1,000 pages.
        """
        workloads: list[Workload] = []
        offset = 0
        for _ in range(_PAGES_AT_MOST):
            params = {"limit": _PAGE, "offset": offset, "sortBy": "createdAt", "filterBy": ",".join(filters)}
            answer = await self._call("GET", "/workloads", params=params)
            page = self._items(answer, "workloads")
            workloads += page
            following = answer.content.get("next")
            if not page or not isinstance(following, int) or following <= offset:
                return Listing(tuple(workloads), answer.at)
            offset = following
        raise SystemFailure(f"Run:ai at {self.base_url} lists workloads without an end.")

    async def workload(self, workload_id: str) -> Workload | None:
        """Return the workload with this id, as `workloads` lists it; None if it does not exist (any more)."""
        answer = await self._call("GET", f"/workloads/{workload_id}", accepted=(404,))
        return None if answer.status_code == 404 else answer.content

    async def details(self, kind: str, workload_id: str) -> Workload | None:
        """Return the workload with this id, including its `spec`; None if this kind has no such id."""
        answer = await self._call("GET", f"/workloads/{kind}/{workload_id}", accepted=(404,))
        return None if answer.status_code == 404 else answer.content

    async def suspend(self, kind: str, workload_id: str) -> None:
        """End the workload's pods but keep the workload and its name.

        The answers 404 (it is gone) and 409 (it cannot be suspended now) are no errors.
        """
        await self._call(
            "POST", f"/workloads/{kind}/{workload_id}/suspend", accepted=(404, 409), may_be_empty=True
        )

    async def delete(self, kind: str, workload_id: str) -> None:
        """End and delete the workload. No error if it is gone."""
        await self._call("DELETE", f"/workloads/{kind}/{workload_id}", accepted=(404,), may_be_empty=True)

    async def events(self, workload_id: str) -> tuple[Mapping[str, Any], ...]:
        """Return the events of the workload, latest first; empty if it is gone."""
        answer = await self._call("GET", f"/workloads/{workload_id}/events", accepted=(404,))
        return () if answer.status_code == 404 else tuple(self._items(answer, "events"))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = True,
        accepted: Sequence[int] = (),
        may_be_empty: bool = False,
        **request: Any,
    ) -> _Reply:
        """Send one request, and retry it after errors. Answers with a status in `accepted` are returned.

        A request that certainly had no effect (no connection, 401, 429) is always retried; one that may have
        had an effect is retried only if it is `repeatable`. An empty answer counts as an error unless it
        `may_be_empty`.
        """
        send = partial(
            self._send,
            method,
            path,
            repeatable=repeatable,
            accepted=accepted,
            may_be_empty=may_be_empty,
            **request,
        )
        return await self._retry(send)

    async def _retry(self, send: Callable[[], Awaitable[Done]]) -> Done:
        """Repeat `send` while it raises `_TryAgain`. Raises OutOfReach after `patience_s` seconds."""

        def note(state: RetryCallState) -> None:
            error = state.outcome and state.outcome.exception()
            _log.info("%s; trying again in %.1f s", error, state.upcoming_sleep)

        again = retrying(_TryAgain, first_s=0.5, longest_s=15, timeout_s=self._patience_s, before_sleep=note)
        try:
            return await again(send)()
        except _TryAgain as error:
            raise OutOfReach(f"{error}; given up after {self._patience_s:g} s") from None

    async def _send(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool,
        accepted: Sequence[int],
        may_be_empty: bool,
        **request: Any,
    ) -> _Reply:
        what = f"{method} {path}"
        refused_token = ""
        while True:
            token = await self._valid_token()
            try:
                answer = await self._client().request(
                    method, self.base_url + path, headers={"Authorization": f"Bearer {token}"}, **request
                )
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                raise self._retryable_error(f"cannot be reached ({_name(error)})") from None
            except httpx.TransportError as error:
                raise self._unclear_error(
                    f"broke off {what} ({_name(error)})", repeatable=repeatable
                ) from None
            if answer.status_code == 401 and token != refused_token:
                refused_token = token
                self._forget(token)
                continue  # once, with a new token: this one may have been revoked or have run out
            content = {} if may_be_empty and answer.is_success and not answer.content else _object(answer)
            if content is None:
                problem = (
                    f"answered {what} with {answer.status_code} and no JSON object: is it Run:ai, or a proxy?"
                )
                raise self._unclear_error(problem, repeatable=repeatable)
            if answer.is_success or answer.status_code in accepted:
                return _Reply(answer.status_code, content, _server_time(answer))
            problem = f"answered {what} with {self._describe_refusal(answer.status_code, content)}"
            if answer.status_code == 429:
                raise self._retryable_error(problem, _retry_after_s(answer))
            if answer.status_code < 500:
                raise self._error_for_refusal(answer.status_code, problem)
            raise self._unclear_error(problem, repeatable=repeatable)

    def _retryable_error(self, problem: str, retry_after_s: float = 0) -> "_TryAgain":
        return _TryAgain(f"Run:ai at {self.base_url} {problem}", retry_after_s)

    def _unclear_error(self, problem: str, *, repeatable: bool) -> SystemFailure:
        return (
            self._retryable_error(problem)
            if repeatable
            else UnclearAnswer(f"Run:ai at {self.base_url} {problem}")
        )

    async def _valid_token(self) -> str:
        """Return the bearer token, renewed if it is about to expire; concurrent callers share one renewal."""
        async with self._token_lock:
            if time.monotonic() >= self._token_ends:
                await self._renew_token()
            return self._token

    async def _renew_token(self) -> None:
        credentials = {
            "grantType": "app_token",
            "AppId": self._connection.login,
            "AppSecret": self._connection.password,
        }
        asked_at = time.monotonic()
        try:
            answer = await self._client().post(f"{self.base_url}/token", json=credentials)
        except httpx.TransportError:
            raise self._retryable_error("gives no token") from None
        content = _object(answer)
        if answer.status_code == 429 or answer.status_code >= 500 or content is None:
            raise self._retryable_error(f"gives no token ({answer.status_code})", _retry_after_s(answer))
        given = content if answer.is_success else {}
        if not given.get("accessToken"):
            raise UserError(
                f"Run:ai at {self.base_url} gives application '{one_line(self._connection.login)}' no token "
                f"({answer.status_code}): check the application's name and secret in the connection "
                f"'{self._connection.name}'."
            )
        self._token = str(given["accessToken"])
        lifetime_s = _seconds(given.get("expiresIn"), otherwise=3600)
        # Renewed before it ends, yet not so early that a short-lived one is never used.
        self._token_ends = asked_at + lifetime_s - min(_RENEW_BEFORE_S, lifetime_s / 4)

    def _forget(self, token: str) -> None:
        if token == self._token:  # another caller may have a new one by now
            self._token_ends = 0.0

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            raise RuntimeError("the client is not open: use it as an async context manager")
        return self._http

    def _error_for_refusal(self, status_code: int, problem: str) -> UserError | SubmitLimit:
        if "exceeded quota" in problem.lower():  # Kubernetes' words for a ResourceQuota of the namespace
            return SubmitLimit(f"Run:ai at {self.base_url} {problem}")
        if status_code == 409:
            return NameTaken(f"Run:ai at {self.base_url} {problem}")
        if status_code in (401, 403):
            return UserError(
                f"Run:ai at {self.base_url} {problem}: give application "
                f"'{one_line(self._connection.login)}' a role in the project that lets it do this."
            )
        return UserError(f"Run:ai at {self.base_url} {problem}")

    def _items(self, answer: _Reply, name: str) -> list[dict[str, Any]]:
        """Return the list of objects in the field `name` of an answer; [] if the field is missing."""
        items = answer.content.get(name, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise SystemFailure(f"Run:ai at {self.base_url} answered with no list of {name}: is it Run:ai?")
        return items

    def _describe_refusal(self, status_code: int, content: Mapping[str, Any]) -> str:
        """Describe an error answer by its status and message, without secrets that the server may echo."""
        message = str(content.get("message") or content.get("details") or "")
        for secret in (self._connection.password, self._token):
            if secret:
                message = message.replace(secret, "***")
        return f"{status_code}" + (f" ({one_line(message, at_most=300)})" if message else "")


def base_url(connection: Connection) -> str:
    """Return the base URL of Run:ai's API, `https://…/api/v1`.

    The connection's host may be a host name or a whole URL. Raises UserError if it is empty or malformed, or
    if the secret would be sent unencrypted.
    """
    host = connection.host.strip()
    written = f"the host of the connection '{connection.name}'"
    if not host:
        raise UserError(f"{written} is empty: write Run:ai's address, as https://nvidia.run.ai/api/v1.")
    url: SplitResult | None
    try:
        url = urlsplit(host if "://" in host else f"https://{host}")
        port = url.port or connection.port
    except ValueError:
        url = None
    if url is None or not url.hostname:
        raise UserError(f"{written}, '{one_line(host)}', is not an address: write https://… .")
    if url.username or url.password or url.query or url.fragment:
        raise UserError(
            f"{written} has more than an address: write https://… only, and the login into the connection's "
            "fields Login and Password."
        )
    if url.scheme != "https" and url.hostname not in _LOOPBACK:
        raise UserError(
            f"{written}, '{one_line(host)}', would send the secret unencrypted: write https://… ."
        )
    name = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return f"{url.scheme}://{name}{f':{port}' if port else ''}{url.path.rstrip('/') or '/api/v1'}"


def _object(answer: httpx.Response) -> dict[str, Any] | None:
    """Return the JSON object of an answer; None if it is anything else, such as a proxy's page."""
    try:
        content = answer.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _seconds(value: Any, *, otherwise: float) -> float:
    """Return a positive number of seconds; `otherwise` if the value is none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else otherwise


def _server_time(answer: httpx.Response) -> float:
    """Return the server's time, to compare its timestamps with; this machine's if the answer has none."""
    try:
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return time.time()


def _retry_after_s(answer: httpx.Response) -> float:
    """Return the seconds that `Retry-After` (RFC 9110, 10.2.3: seconds or a date) asks for; 0 without it."""
    written = answer.headers.get("Retry-After", "")
    if written.isdecimal():
        return float(written)
    try:
        until = parsedate_to_datetime(written)
    except ValueError:
        return 0
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _name(error: Exception) -> str:
    return type(error).__name__
