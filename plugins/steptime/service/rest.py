"""A small client of Airflow's REST API: log in, trigger a DAG run, follow it, read logs.

Raises UserError with Airflow's message for mistakes of the caller (a refused password, params that do not
validate, an unknown DAG), and SystemFailure if Airflow does not answer or has an error itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict

from steptime.airflow_addresses import dag_run_path
from steptime.errors import SystemFailure, UserError, one_line
from steptime.frozen import Frozen
from steptime.waiting import poll_until, retrying

_TIMEOUT_S = 30.0
_MARKED_WITHIN_S = 100.0
"""How long marking a DAG run as failed is tried. A try that waits in vain for SQLite's lock takes 20 s."""
_UNDER_WAY = (
    *("scheduled", "queued", "running", "deferred", "awaiting_input", "restarting"),
    *("up_for_retry", "up_for_reschedule"),
)
"""States of a task that is under way."""
_PAGE, _MOST_PAGES = 100, 1000

_Model = TypeVar("_Model", bound=BaseModel)


class _Answer(BaseModel):
    """A part of an answer; only the fields that are used are declared."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Dag(_Answer):
    """A DAG that Airflow knows."""

    dag_id: str
    is_paused: bool
    is_stale: bool = False
    """True if Airflow no longer finds it in its file, or cannot read the file."""
    file_token: str = ""
    """By which Airflow is asked to read the DAG's file again."""


class DagRun(_Answer):
    """One run of a DAG."""

    dag_id: str
    dag_run_id: str
    state: str
    """`queued`, `running`, `success` or `failed`."""
    start_date: datetime | None = None
    end_date: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the DAG run has ended: its state is `success` or `failed`."""
        return self.state in ("success", "failed")


class TaskInstance(_Answer):
    """One task, or one mapped instance of it, in a DAG run."""

    task_id: str
    map_index: int
    """-1 if the task is not mapped."""
    rendered_map_index: str | None = None
    """Label of a mapped instance, such as `tiny·fp32·2`."""
    state: str | None
    """None if the task has not been scheduled."""
    try_number: int
    start_date: datetime | None = None
    end_date: datetime | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the task was scheduled and has not ended: it may run, be deferred, or wait for a retry."""
        return self.state in _UNDER_WAY

    @property
    def label(self) -> str:
        """The task's name; for a mapped instance also its label or index in brackets."""
        if self.map_index < 0:
            return self.task_id
        return f"{self.task_id} [{self.rendered_map_index or self.map_index}]"


class Question(_Answer):
    """What a task asks a person."""

    subject: str
    body: str | None = None
    options: tuple[str, ...]
    response_received: bool = False
    """Whether somebody has answered."""


class _Error(_Answer):
    exc_type: str
    exc_value: str


_EXITED = "Task exited"
"""Airflow's own message about a task that exits."""


class _ImportError(_Answer):
    filename: str
    stack_trace: str
    timestamp: datetime


class LogLine(_Answer):
    """One line of a task's log."""

    event: str
    logger: str | None = None
    """None for lines that Airflow adds to the log."""
    level: str | None = None
    error_detail: tuple[_Error, ...] = ()
    """The logged exception, followed by its causes."""

    @property
    def is_ours(self) -> bool:
        """Whether steptime logged the line, and not Airflow or another package."""
        return self.logger is not None and "steptime" in self.logger

    @property
    def error(self) -> str | None:
        """The error that the line reports, in one sentence; None if it reports none."""
        if self.error_detail:
            return self.error_detail[0].exc_value or self.error_detail[0].exc_type
        if self.event == _EXITED:  # the line before has the reason
            return None
        return self.event if self.level in ("error", "critical") else None


class _Log(_Answer):
    content: tuple[LogLine, ...]


class Health(Frozen):
    """The health of Airflow's components: the answer of `/monitor/health`."""

    components: dict[str, str]
    """Status by component: metadatabase, scheduler, triggerer, dag_processor."""
    heartbeats: dict[str, float]
    """Latest heartbeat by component, in Unix seconds; the database has none."""

    def is_healthy(self, component: str, *, since: float) -> bool:
        """Return whether a component is healthy and has no heartbeat, or one since `since` (Unix time)."""
        beat = self.heartbeats.get(component)
        return self.components.get(component) == "healthy" and (beat is None or beat >= since)

    @property
    def all_healthy(self) -> bool:
        """Whether all components are healthy."""
        return all(status == "healthy" for status in self.components.values())


class AirflowClient:
    """A client of Airflow's REST API at `url` for one user: a context manager; the first request logs in."""

    def __init__(self, url: str, user: str, password: str) -> None:
        host = check_address(url)
        self.url = url.rstrip("/")
        self.user = user
        self._password = password
        self._token: str | None = None
        # A proxy cannot reach the loopback addresses of this machine.
        by_proxy = host not in ("127.0.0.1", "localhost", "::1")
        self._http = httpx.Client(base_url=self.url, timeout=_TIMEOUT_S, trust_env=by_proxy)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def health(self) -> Health:
        """Return the health of Airflow's components. This needs no login."""
        answer = self._json(self._send("GET", "/api/v2/monitor/health"))
        with self._expected_form("/api/v2/monitor/health"):
            beats = {
                name: datetime.fromisoformat(beat).timestamp()
                for name, health in answer.items()
                if (beat := health.get(f"latest_{name}_heartbeat"))
            }
            return Health(
                components={
                    name: str(health["status"] or "never started") for name, health in answer.items()
                },
                heartbeats=beats,
            )

    def dags(self) -> list[Dag]:
        """Return the active DAGs."""
        return self._pages(Dag, "/api/v2/dags", "dags")

    def import_errors(self, *, since: float = 0.0) -> dict[str, str]:
        """Return the error of each DAG file that cannot be read, one line, by file name.

        Only files that Airflow has read since `since` (Unix time).
        """
        errors = self._pages(_ImportError, "/api/v2/importErrors", "import_errors")
        return {
            error.filename: _error_of(error.stack_trace)
            for error in errors
            if error.timestamp.timestamp() >= since
        }

    def trigger(self, dag_id: str, conf: Mapping[str, Any], *, patience_s: float = 0) -> DagRun:
        """Start a DAG run with params, and return it.

        Raises UserError if the DAG is unknown or paused, and with Airflow's message if it refuses the params.
        Waits up to `patience_s` seconds for a DAG that Airflow has not read yet, as that of a new workload,
        or right after Airflow's start.
        The id of the DAG run is chosen here, so that after a lost reply it can be looked up and starts only
        once.
        """
        path = f"/api/v2/dags/{quote(dag_id)}"
        dag = self._dag(path)
        if dag is None and patience_s:
            self._read_dag_files_again()
            dag = poll_until(lambda: self._dag(path), every_s=0.5, timeout_s=patience_s)
        if dag is None:
            raise self._error_for_unknown_dag(dag_id)
        if dag.is_paused:
            raise UserError(f"the DAG '{dag_id}' is paused: unpause it at {self.url}/dags/{quote(dag_id)}")
        run_id = f"steptime_run__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf)}
        try:
            return self._ask(DagRun, "POST", f"{path}/dagRuns", json=body)
        except SystemFailure:
            try:
                dag_run = self.dag_run_if_any(dag_id, run_id)
            except UserError as refusal:  # it may run all the same
                raise SystemFailure(
                    f"Airflow at {self.url} did not say whether it started the DAG run {run_id}: look at "
                    f"{self.run_address(dag_id, run_id)} before you start another ({refusal})"
                ) from None
            if dag_run is None:
                raise
            return dag_run

    def _dag(self, path: str) -> Dag | None:
        dag = self._ask_if_any(Dag, path)
        return None if dag is None or dag.is_stale else dag

    def _read_dag_files_again(self) -> None:
        """Ask Airflow to read the files of steptime's DAGs now. Who may not ask waits for its next time."""
        dags = self._pages(Dag, "/api/v2/dags", "dags", {"tags": "steptime"})
        with suppress(UserError):
            for token in {dag.file_token for dag in dags} - {""}:
                self._call("PUT", f"/api/v2/parseDagFile/{quote(token)}", answers_nothing=True)

    def _error_for_unknown_dag(self, dag_id: str) -> UserError:
        """Return the error for a DAG that Airflow does not have: it names files that Airflow cannot read."""
        if not (broken := self.import_errors()):
            return UserError(
                f"Airflow has no DAG '{dag_id}'. The DAG of a new workload appears within five minutes, "
                "if its file is in the config/ that Airflow reads and a cluster there can run it"
            )
        files = ", ".join(f"{name} ({error})" for name, error in broken.items())
        return UserError(
            f"Airflow has no DAG '{dag_id}', and could not read {files}: correct what this "
            "names; Airflow reads it again within five minutes, or at once when the DAG file is touched"
        )

    def dag_run(self, dag_id: str, dag_run_id: str) -> DagRun:
        """Return one DAG run in its current state. Raises UserError if it does not exist."""
        return self._ask(DagRun, "GET", _run_path(dag_id, dag_run_id))

    def dag_run_if_any(self, dag_id: str, dag_run_id: str) -> DagRun | None:
        """Return one DAG run in its current state; None if it does not exist."""
        return self._ask_if_any(DagRun, _run_path(dag_id, dag_run_id))

    def find_dag_run(self, dag_run_id: str, *, tag: str) -> DagRun | None:
        """Return the DAG run with this id, of any DAG with this tag; None if there is none."""
        for dag in self._pages(Dag, "/api/v2/dags", "dags", {"tags": tag, "exclude_stale": False}):
            if (dag_run := self.dag_run_if_any(dag.dag_id, dag_run_id)) is not None:
                return dag_run
        return None

    def mark_failed(self, run: DagRun) -> None:
        """Mark a DAG run as failed, as the button in the UI does: its tasks then end their jobs.

        Repeated if Airflow answers with an error of its own: SQLite may be locked while the scheduler writes.
        """
        path, body = _run_path(run.dag_id, run.dag_run_id), {"state": "failed"}
        again = retrying(SystemFailure, longest_s=4.0, timeout_s=_MARKED_WITHIN_S)
        again(lambda: self._call("PATCH", path, json=body))()

    def question(self, run: DagRun, task_id: str) -> Question | None:
        """Return what a task of a DAG run asks a person; None if it has not asked."""
        answer = self._call("GET", _question_path(run, task_id), missing=None)
        return None if answer is None else Question.model_validate(answer)

    def answer(self, run: DagRun, task_id: str, option: str) -> None:
        """Answer what a task of a DAG run asks. Raises UserError if somebody was quicker."""
        self._call("PATCH", _question_path(run, task_id), json={"chosen_options": [option]})

    def running_dag_runs(self) -> list[DagRun]:
        """Return the DAG runs that are queued or running, of all DAGs."""
        states = {"state": ["running", "queued"]}
        return self._pages(DagRun, "/api/v2/dags/~/dagRuns", "dag_runs", states)

    def task_instances(self, dag_id: str, dag_run_id: str) -> list[TaskInstance]:
        """Return all task instances of a DAG run, each mapped instance included."""
        path = f"{_run_path(dag_id, dag_run_id)}/taskInstances"
        return self._pages(TaskInstance, path, "task_instances")

    def clear(self, run: DagRun, tasks: Iterable[TaskInstance]) -> None:
        """Clear exactly these tasks of a DAG run, so that they run again, without downstream tasks.

        With downstream tasks, Airflow 3.1 would also clear those of all other mapped instances.
        """
        body = {
            "dag_run_id": run.dag_run_id,
            "task_ids": [
                task.task_id if task.map_index < 0 else [task.task_id, task.map_index] for task in tasks
            ],
            "dry_run": False,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self._call("POST", f"/api/v2/dags/{quote(run.dag_id)}/clearTaskInstances", json=body)

    def log(self, dag_id: str, dag_run_id: str, task: TaskInstance) -> list[LogLine]:
        """Return the lines that a task's latest try has logged so far."""
        tries = max(1, task.try_number)
        path = f"{_run_path(dag_id, dag_run_id)}/taskInstances/{quote(task.task_id)}/logs/{tries}"
        params = {"map_index": task.map_index, "full_content": True}
        return list(self._ask(_Log, "GET", path, params=params).content)

    def run_address(self, dag_id: str, dag_run_id: str) -> str:
        """Return the URL of a DAG run's page in Airflow's UI."""
        return f"{self.url}{dag_run_path(dag_id, dag_run_id)}"

    def task_address(self, dag_id: str, dag_run_id: str, task: TaskInstance) -> str:
        """Return the URL of a task instance's page in Airflow's UI."""
        mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
        return f"{self.run_address(dag_id, dag_run_id)}/tasks/{quote(task.task_id)}{mapped}"

    def _pages(
        self, model: type[_Model], path: str, key: str, params: Mapping[str, Any] | None = None
    ) -> list[_Model]:
        """Return the entries `key` of all pages of an answer. Raises SystemFailure for pages without end."""
        entries: list[_Model] = []
        for _ in range(_MOST_PAGES):
            page = {**(params or {}), "limit": _PAGE, "offset": len(entries)}
            answer = self._call("GET", path, params=page)
            with self._expected_form(path):
                news = [model.model_validate(entry) for entry in answer[key]]
                entries += news
                if not news or len(entries) >= int(answer["total_entries"]):
                    return entries
        raise SystemFailure(f"Airflow at {self.url} has more than {len(entries):,} entries for {path}")

    def _ask(self, model: type[_Model], method: str, path: str, **request: Any) -> _Model:
        """Send a request and return its answer. Raises SystemFailure for one of another form."""
        answer = self._call(method, path, **request)
        with self._expected_form(path):
            return model.model_validate(answer)

    def _ask_if_any(self, model: type[_Model], path: str) -> _Model | None:
        """Return what is at a path; None if Airflow says that there is nothing."""
        answer = self._call("GET", path, missing=None)
        with self._expected_form(path):
            return None if answer is None else model.model_validate(answer)

    @contextmanager
    def _expected_form(self, path: str) -> Iterator[None]:
        """Raise SystemFailure for errors of the block, which reads an answer: it is not of Airflow's form."""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = one_line(error, at_most=200)
            raise SystemFailure(
                f"what answers at {self.url} is not Airflow's API: its answer to {path} has another form "
                f"({why})"
            ) from None

    def _call(
        self,
        method: str,
        path: str,
        *,
        missing: object = ...,
        answers_nothing: bool = False,
        **request: Any,
    ) -> Any:
        """Send one authorised request; if the token has expired, log in again. Return `missing` for a 404."""
        for attempt in ("first", "with a new token"):
            if self._token is None:
                self._token = self._log_in()
            headers = {"Authorization": f"Bearer {self._token}"}
            response = self._send(method, path, headers=headers, **request)
            if response.status_code != HTTPStatus.UNAUTHORIZED or attempt != "first":
                break
            self._token = None
        if response.status_code == HTTPStatus.NOT_FOUND and missing is not ... and _is_airflows(response):
            return missing
        return None if answers_nothing and response.is_success else self._json(response)

    def _log_in(self) -> str:
        """Log in and return the token.

        FAB's manager refuses a right password, too, while it cannot read its database: its `find_user` takes
        any error for a user who does not exist. So a refusal counts once the database is known to be healthy.
        Raises UserError if Airflow refuses the password, and SystemFailure if its database is not healthy.
        """
        body = {"username": self.user, "password": self._password}
        response = self._send("POST", "/auth/token", json=body)
        if _is_refusal(response):
            database = self.health().components.get("metadatabase")
            if database != "healthy":
                raise SystemFailure(
                    f"Airflow at {self.url} can log nobody in, as its database is {database or 'not shown'}"
                )
            response = self._send("POST", "/auth/token", json=body)
        if _is_refusal(response):
            raise UserError(
                f"Airflow at {self.url} refuses the password of '{self.user}': "
                "set STEPTIME_AIRFLOW_USER and STEPTIME_AIRFLOW_PASSWORD"
            )
        with self._expected_form("/auth/token"):
            return str(self._json(response)["access_token"])

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **request)
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise SystemFailure(
                f"no Airflow answers at {self.url} ({why}): check the address, and that it runs"
            ) from None

    def _json(self, response: httpx.Response) -> Any:
        """Return the JSON of a good answer. Raises UserError for 4xx, and SystemFailure for the rest."""
        try:
            body = response.json()
        except ValueError:
            body = None
        if response.is_success and body is not None:
            return body
        request = f"{response.request.method} {response.request.url.path}"
        if response.is_client_error and _is_airflows(response):
            raise UserError(f"Airflow refuses {request}: {_message(body) or response.reason_phrase}")
        status = f"{response.status_code} {response.reason_phrase}" + (
            f", {_message(body)}" if _message(body) else ""
        )
        kind = "answers" if not response.is_success else "answers without JSON (is this an Airflow?) to"
        raise SystemFailure(f"Airflow at {self.url} {kind} {request}: {status}")


def check_address(url: str) -> str:
    """Check the URL of an Airflow and return its host. Raises UserError if it is not http(s)://host:port."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UserError(f"'{one_line(url)}' is not an address: {error}") from None
    if address.scheme not in ("http", "https") or not address.host or "%" in address.host:
        raise UserError(f"'{one_line(url)}' is not an address of the form http://host:port")
    if address.userinfo:
        raise UserError(
            f"the address of {address.host} contains a user name: remove it, and set "
            "STEPTIME_AIRFLOW_USER and STEPTIME_AIRFLOW_PASSWORD"
        )
    return address.host


def _question_path(run: DagRun, task_id: str) -> str:
    return f"{_run_path(run.dag_id, run.dag_run_id)}/taskInstances/{quote(task_id)}/-1/hitlDetails"


def _error_of(traceback: str) -> str:
    """Return the first line of the error that ends a traceback: the one after its last indented line.

    Airflow's own errors go on for lines with links.
    """
    lines = traceback.strip().splitlines() or [""]
    frames = [index for index, line in enumerate(lines[:-1]) if line.startswith(" ")]
    return lines[frames[-1] + 1 if frames else -1]


def _run_path(dag_id: str, dag_run_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(dag_run_id, safe='')}"


def _is_refusal(response: httpx.Response) -> bool:
    """Return whether an answer to a login is Airflow's refusal of the user or the password."""
    refusals = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    return response.status_code in refusals and _is_airflows(response)


def _is_airflows(response: httpx.Response) -> bool:
    """Return whether an error is Airflow's own, JSON with `detail`, and not the page of a proxy before it."""
    try:
        body = response.json()
    except ValueError:
        return False
    return isinstance(body, dict) and "detail" in body


def _message(body: Any) -> str:
    """Return the message of an error: FastAPI's `detail` is a sentence or a list of {loc, msg}."""
    detail = body.get("detail") if isinstance(body, dict) else None
    if isinstance(detail, list):
        return "; ".join(
            f"{'.'.join(str(part) for part in item.get('loc', ()))}: {item.get('msg')}" for item in detail
        )
    # If a param does not validate, the first line is a sentence, and the schema follows.
    return str(detail).strip().splitlines()[0] if detail else ""
