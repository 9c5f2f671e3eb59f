"""A thin asynchronous client of Run:ai's REST API, version 1: the few endpoints that a benchmark needs.

Run:ai publishes a generated Python client, which repeats a POST after a 5xx answer: a workload could be made
twice. Here a request that may have taken effect is repeated only if repeating it changes nothing. Creating
a workload is not repeated: if its outcome is not known, it raises `UnclearAnswer`, and the caller looks the
workload up by name.

Only answers in Run:ai's own form count, which `answers` describes. A page with status 404 is from a proxy,
and says nothing about a workload. No answer may be larger or take longer than a limit.

Except for a creation no refusal is a `UserError`: roles, policies and logins can be away for a while, and a
job that was submitted is then neither over nor its user's to mend.

The secret and the tokens never appear in its log lines and error messages.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast
from urllib.parse import SplitResult, urlsplit

import httpx
from tenacity import RetryCallState

from steptime.clusters.connections import Connection
from steptime.clusters.runai import answers
from steptime.clusters.runai.answers import Details, Project, RunaiWorkload, WorkloadEvent
from steptime.errors import LoginRefused, OutOfReach, SubmitLimit, SystemFailure, UserError, one_line
from steptime.waiting import retrying

Done = TypeVar("Done")

TRAININGS, DISTRIBUTED = "trainings", "distributed"
"""The kinds of workloads, as in the API's URLs: one pod, or a master with its workers."""

_PAGE = 500
"""Workloads per request: the most that the API allows."""
_PAGES_AT_MOST = 200
_BYTES_AT_MOST = 64 << 20
_TIMEOUT_S = 30.0
_ANSWER_WITHIN_S = 120.0
_RENEW_BEFORE_S = 60.0
_UNCLEAR = (408, 425, 499)
"""Statuses of gateways below 500 that do not say whether the request took effect."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_log = logging.getLogger(__name__)


class UnclearAnswer(SystemFailure):
    """It is unknown whether a request took effect: the connection broke, or the server failed."""


class _TryAgain(SystemFailure):
    """The request had no effect, or may be repeated."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NameTaken(UserError):
    """The project already has a workload of that name."""


class Listing(NamedTuple):
    """Workloads as Run:ai lists them, and the server's clock at that time (Unix time in seconds)."""

    workloads: tuple[RunaiWorkload, ...]
    at: float


class _HttpAnswer(NamedTuple):
    """A whole answer of a server, which need not be Run:ai."""

    status_code: int
    headers: httpx.Headers
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300


class _Reply(NamedTuple):
    """An answer of Run:ai."""

    content: Any
    """The answer in the form that was asked for; None for a status in `accepted`."""
    at: float
    """The server's clock (Unix time in seconds)."""


class RunaiClient:
    """A client of one Run:ai control plane, logged in as one application; use it with `async with`.

    Every request raises OutOfReach if Run:ai does not answer in time, or refuses the login or lacks a role
    for it, and SystemFailure if Run:ai refuses it for another reason.
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
        """Check that the application can get a token. Raises LoginRefused if it is refused."""
        await self._retry(self._valid_token)

    async def project(self, name: str) -> Project:
        """Return the project of that name. Raises LoginRefused if the application cannot see it."""
        params = {"filterBy": f"name=={name}"}
        listed = await self._get("/org-unit/projects", answers.Projects, params=params)
        for project in listed.content.projects:
            if project.name == name:
                return cast(Project, project)
        raise LoginRefused(
            f"Run:ai at {self.base_url} shows no project '{one_line(name)}': write its name as under "
            "Organization, Projects, and give the application a role in it."
        )

    async def create(self, kind: str, request: Mapping[str, Any]) -> Details:
        """Create a workload.

        Raises:
            NameTaken: the project already has a workload of this name.
            UnclearAnswer: the workload may or may not have been created.
            SubmitLimit: the resource quota of the project's namespace is used up.
            UserError: Run:ai refuses the request.
        """
        reply = await self._call("POST", f"/workloads/{kind}", Details, json=request, is_creation=True)
        return cast(Details, reply.content)

    async def workloads(self, filters: Sequence[str]) -> Listing:
        """Return all workloads that pass every filter, such as `name==mine`, however many pages they fill.

        Raises SystemFailure if there are more than 200 pages.
        """
        workloads: list[RunaiWorkload] = []
        offset = 0
        for _ in range(_PAGES_AT_MOST):
            params = {"limit": _PAGE, "offset": offset, "sortBy": "createdAt", "filterBy": ",".join(filters)}
            reply = await self._get("/workloads", answers.Workloads, params=params)
            page: answers.Workloads = reply.content
            workloads += page.workloads
            if not page.workloads or page.next is None:
                return Listing(tuple(workloads), reply.at)
            if page.next <= offset:
                break
            offset = page.next
        raise SystemFailure(f"Run:ai at {self.base_url} lists workloads without an end.")

    async def workload(self, workload_id: str) -> RunaiWorkload | None:
        """Return the workload with this id, as `workloads` lists it; None if it does not exist (any more)."""
        reply = await self._get(f"/workloads/{workload_id}", RunaiWorkload, accepted=(404,))
        return cast(RunaiWorkload | None, reply.content)

    async def details(self, kind: str, workload_id: str) -> Details | None:
        """Return the workload with this id, including its `spec`; None if this kind has no such id."""
        reply = await self._get(f"/workloads/{kind}/{workload_id}", Details, accepted=(404,))
        return cast(Details | None, reply.content)

    async def suspend(self, kind: str, workload_id: str) -> None:
        """End the workload's pods but keep the workload and its name.

        The answers 404 (it is gone) and 409 (it cannot be suspended now) are no errors.
        """
        await self._call("POST", f"/workloads/{kind}/{workload_id}/suspend", None, accepted=(404, 409))

    async def delete(self, kind: str, workload_id: str) -> None:
        """End and delete the workload. No error if it is gone."""
        await self._call("DELETE", f"/workloads/{kind}/{workload_id}", None, accepted=(404,))

    async def events(self, workload_id: str) -> tuple[WorkloadEvent, ...]:
        """Return the events of the workload, latest first; empty if it is gone."""
        reply = await self._get(f"/workloads/{workload_id}/events", answers.Events, accepted=(404,))
        return tuple(filter(None, reply.content.events)) if reply.content else ()

    async def _get(self, path: str, form: type[answers.Form], **request: Any) -> _Reply:
        return await self._call("GET", path, form, **request)

    async def _call(
        self,
        method: str,
        path: str,
        form: type[answers.Form] | None,
        *,
        is_creation: bool = False,
        accepted: Sequence[int] = (),
        **request: Any,
    ) -> _Reply:
        """Send one request, and retry it after errors.

        A request that certainly had no effect (no connection, 401, 429) is always retried; one that may have
        had an effect is retried unless it `is_creation`.

        Args:
            method: the HTTP method.
            path: what follows the base URL.
            form: the form of a successful answer; None if its content does not matter and it may be empty.
            is_creation: whether repeating the request could make a second workload.
            accepted: further statuses that are no errors, if the answer is in Run:ai's form.
            request: further arguments of the request.
        """
        send = partial(self._send, method, path, form, is_creation=is_creation, accepted=accepted, **request)
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
        form: type[answers.Form] | None,
        *,
        is_creation: bool,
        accepted: Sequence[int],
        **request: Any,
    ) -> _Reply:
        what = f"{method} {path}"
        refused_token = ""
        while True:
            token = await self._valid_token()
            try:
                answer = await self._exchange(
                    method, path, headers={"Authorization": f"Bearer {token}"}, **request
                )
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                raise self._retryable_error(f"cannot be reached ({_name(error)})") from None
            except httpx.HTTPError as error:
                raise self._unclear_error(
                    f"broke off {what} ({_name(error)})", is_creation=is_creation
                ) from None
            if answer.status_code == 401 and token != refused_token:
                refused_token = token
                self._forget(token)
                continue  # once, with a new token: this one may have been revoked or have run out
            try:
                if answer.is_success:
                    content = form and answers.parse(answer.content, form)
                    return _Reply(content, _server_time(answer))
                refusal = answers.parse(answer.content, answers.Refusal)
            except answers.OtherForm as other:
                raise self._unclear_error(
                    f"answered {what} with {answer.status_code} and {other}: is it Run:ai, or a proxy?",
                    is_creation=is_creation,
                ) from None
            if answer.status_code in accepted:
                return _Reply(None, _server_time(answer))
            problem = f"answered {what} with {self._describe_refusal(answer.status_code, refusal)}"
            if answer.status_code == 429:
                raise self._retryable_error(problem, _retry_after_s(answer))
            if answer.status_code < 400 or answer.status_code in _UNCLEAR or answer.status_code >= 500:
                raise self._unclear_error(problem, is_creation=is_creation)
            raise self._error_for_refusal(answer.status_code, problem, is_creation=is_creation)

    async def _exchange(self, method: str, path: str, **request: Any) -> _HttpAnswer:
        """Send a request and return the whole answer. Raises httpx.HTTPError."""
        client = self._client()
        try:
            async with (
                asyncio.timeout(_ANSWER_WITHIN_S),
                client.stream(method, self.base_url + path, **request) as answer,
            ):
                content = bytearray()
                async for chunk in answer.aiter_bytes():
                    content += chunk
                    if len(content) > _BYTES_AT_MOST:
                        raise httpx.ReadError(f"it is larger than {_BYTES_AT_MOST >> 20} MiB")
                return _HttpAnswer(answer.status_code, answer.headers, bytes(content))
        except TimeoutError:
            raise httpx.ReadTimeout("it took too long") from None

    def _retryable_error(self, problem: str, retry_after_s: float = 0) -> "_TryAgain":
        return _TryAgain(f"Run:ai at {self.base_url} {problem}", retry_after_s)

    def _unclear_error(self, problem: str, *, is_creation: bool) -> SystemFailure:
        return (
            UnclearAnswer(f"Run:ai at {self.base_url} {problem}")
            if is_creation
            else self._retryable_error(problem)
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
            answer = await self._exchange("POST", "/token", json=credentials)
        except httpx.HTTPError:
            raise self._retryable_error("gives no token") from None
        is_refusal = answer.status_code in (400, 401, 403, 404) and _is_object(answer.content)
        if is_refusal:
            raise LoginRefused(
                f"Run:ai at {self.base_url} gives application '{one_line(self._connection.login)}' no token "
                f"({answer.status_code}): check the application's name and secret in the connection "
                f"'{self._connection.name}'."
            )
        try:
            given = answers.parse(answer.content if answer.is_success else b"", answers.Token)
        except answers.OtherForm:
            raise self._retryable_error(
                f"gives no token ({answer.status_code})", _retry_after_s(answer)
            ) from None
        self._token = given.access_token
        lifetime_s = _seconds(given.expires_in, otherwise=3600)
        # Renewed before it ends, yet not so early that a short-lived one is never used.
        self._token_ends = asked_at + lifetime_s - min(_RENEW_BEFORE_S, lifetime_s / 4)

    def _forget(self, token: str) -> None:
        if token == self._token:  # another caller may have a new one by now
            self._token_ends = 0.0

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            raise RuntimeError("the client is not open: use it as an async context manager")
        return self._http

    def _error_for_refusal(
        self, status_code: int, problem: str, *, is_creation: bool
    ) -> UserError | SystemFailure:
        problem = f"Run:ai at {self.base_url} {problem}"
        if "exceeded quota" in problem.lower():  # Kubernetes' words for a ResourceQuota of the namespace
            return SubmitLimit(problem)
        if status_code == 409 and is_creation:
            return NameTaken(problem)
        if status_code in (401, 403):
            problem += (
                f": give application '{one_line(self._connection.login)}' a role in the project that lets it "
                "do this."
            )
            return UserError(problem) if is_creation else LoginRefused(problem)
        return UserError(problem) if is_creation else SystemFailure(problem)

    def _describe_refusal(self, status_code: int, refusal: answers.Refusal) -> str:
        """Describe an error answer by its status and message, without secrets that the server may echo."""
        message = refusal.message or refusal.details or ""
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


def _is_object(content: bytes) -> bool:
    try:
        answers.parse(content, answers.Empty)
    except answers.OtherForm:
        return False
    return True


def _seconds(value: Any, *, otherwise: float) -> float:
    """Return a positive number of seconds; `otherwise` if the value is none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else otherwise


def _server_time(answer: _HttpAnswer) -> float:
    """Return the server's time, to compare its timestamps with; this machine's if the answer has none."""
    told = _http_date(answer.headers.get("Date", ""))
    return time.time() if told is None else told


def _retry_after_s(answer: _HttpAnswer) -> float:
    """Return the seconds that `Retry-After` (RFC 9110, 10.2.3: seconds or a date) asks for; 0 without it."""
    written = answer.headers.get("Retry-After", "")
    if written.isdecimal():
        return float(written)
    until = _http_date(written)
    return 0 if until is None else max(0.0, until - time.time())


def _http_date(written: str) -> float | None:
    """Return a date of HTTP as Unix time; None for another text. A date without a zone counts as UTC."""
    try:
        date = parsedate_to_datetime(written)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _name(error: Exception) -> str:
    return type(error).__name__
