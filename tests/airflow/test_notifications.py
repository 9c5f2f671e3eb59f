"""Notifiers: a webhook against a server of the test's own, what is refused, and what fails loudly."""

import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException
from stored import publish

from steptime.airflow import webhook as steptime_webhook
from steptime.airflow.notifications import Event, load_notifications, notify
from steptime.airflow.result_operators import FAILURE_KEY
from steptime.errors import UserError
from steptime.recipes.planning import Plan
from steptime.results.models import Result
from steptime.results.store import Store

from .conftest import task_of

SENTENCE = "tiny·fp32·1 on local is slower by 4.5 %, as two fresh runs confirm"
TOKEN = "t0k3n-of-the-team"


@pytest.fixture
def ask_for(home: Path) -> Callable[..., None]:
    """Writes `config/notifications.yaml`."""

    def write(*notifications: dict[str, Any]) -> None:
        file = home.parent / "config" / "notifications.yaml"
        file.unlink(missing_ok=True)
        file.write_text(json.dumps({"notifications": notifications}))

    return write


@pytest.fixture
def told() -> list[str]:
    """What was logged as an error."""
    return []


@pytest.fixture
def send(make_context: Callable[..., Any], told: list[str]) -> Callable[..., None]:
    def send(event: Event = Event.INCIDENT_CONFIRMED) -> None:
        notify(event, SENTENCE, make_context(), lambda line, *values: told.append(line % values))

    return send


class _Mail(socketserver.StreamRequestHandler):
    """As much SMTP as a client needs to hand over one message."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().decode().strip():
            if line.upper() == "DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(lambda: self.rfile.readline().decode(), ".\r\n")
                self.server.messages.append("".join(lines))  # type: ignore[attr-defined]
            self.wfile.write(b"221 bye\r\n" if line.upper() == "QUIT" else b"250 fine\r\n")


class _Post(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, self.headers["Authorization"], json.loads(body)))  # type: ignore[attr-defined]
        self.send_response(500 if "broken" in self.path else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], list[Any]]]:
    """A mail server and a web server, in Airflow's connections; the messages and posts they got."""
    with (
        socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Mail) as mail,
        ThreadingHTTPServer(("127.0.0.1", 0), _Post) as web,
    ):
        mail.messages, web.posts = [], []  # type: ignore[attr-defined]
        for server in (mail, web):
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        port = mail.server_address[1]
        plain = {"disable_ssl": True, "disable_tls": True}
        for name, connection in {
            "smtp_default": {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": plain},
            "team_webhook": {"host": f"http://127.0.0.1:{web.server_port}/hooks/s3cr3t", "password": TOKEN},
            "broken_webhook": {"host": f"http://127.0.0.1:{web.server_port}/broken/s3cr3t"},
            "no_webhook": {"host": "http://127.0.0.1:9/s3cr3t"},
        }.items():
            value = json.dumps({"conn_type": "http", **connection})
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", value)
        yield mail.messages, web.posts  # type: ignore[attr-defined]
        mail.shutdown()
        web.shutdown()


def webhook(connection: str, *events: str) -> dict[str, Any]:
    return {
        "events": events or ["incident confirmed"],
        "notifier": "steptime.airflow.webhook.WebhookNotifier",
        "arguments": {"connection": connection},
    }


def test_a_webhook_gets_the_sentence_and_no_log_its_address(
    ask_for: Callable[..., None],
    send: Callable[..., None],
    told: list[str],
    servers: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ask_for(webhook("team_webhook"), webhook("broken_webhook"), webhook("no_webhook"))
    with caplog.at_level(logging.INFO):
        send()
        send(Event.INCIDENT_OPENED)  # none of them asked for it

    (path, authorization, body), _ = servers[1]
    assert (path, authorization) == ("/hooks/s3cr3t", f"Bearer {TOKEN}")
    assert (body["event"], body["sentence"]) == ("incident confirmed", SENTENCE)
    assert body["address"].endswith("/dags/llama31/runs/manual__2026-11-21")
    assert body["text"].startswith(f"steptime, incident confirmed: {SENTENCE} ")
    assert told == [
        "steptime.airflow.webhook.WebhookNotifier did not notify of 'incident confirmed': the address of "
        "connection 'broken_webhook' answers with status 500",
        "steptime.airflow.webhook.WebhookNotifier did not notify of 'incident confirmed': the address of "
        "connection 'no_webhook' does not answer: ConnectError",
    ]
    everything = caplog.text + "".join(told)
    assert "s3cr3t" not in everything
    assert TOKEN not in everything


@pytest.mark.timeout(60)
def test_a_webhook_that_never_answers_is_given_up(
    ask_for: Callable[..., None],
    send: Callable[..., None],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steptime_webhook, "_WITHIN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connection = {"conn_type": "http", "host": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        monkeypatch.setenv("AIRFLOW_CONN_SILENT_WEBHOOK", json.dumps(connection))
        ask_for(webhook("silent_webhook"))
        send()
    assert [line.rpartition(": ")[2] for line in told] == ["ReadTimeout"]


class Fails(BaseNotifier):
    """As others fail: with a secret in its message."""

    def notify(self, context: Any) -> None:
        raise RuntimeError(f"https://ada:s3cr3t@chat.example.com with {context['sentence']}")


def test_one_that_fails_is_said_loudly_and_stops_no_other(
    ask_for: Callable[..., None], send: Callable[..., None], told: list[str], servers: Any
) -> None:
    fails = {"events": ["incident confirmed"], "notifier": f"{__name__}.Fails"}
    gone = {"events": ["incident confirmed"], "notifier": "no_such_package.Notifier"}
    other = {"events": ["incident confirmed"], "notifier": "json.JSONDecoder"}
    ask_for(fails, gone, other, webhook("team_webhook"))
    send()

    assert [line.partition(" did not notify of 'incident confirmed': ")[2] for line in told] == [
        "it raised RuntimeError",
        "the notifier 'no_such_package.Notifier' of config/notifications.yaml cannot be imported: No module "
        "named 'no_such_package'. Install its package where steptime is, or correct the name.",
        "'json.JSONDecoder' of config/notifications.yaml is not an Airflow notifier: name a BaseNotifier.",
    ]
    assert len(servers[1]) == 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"events": ["sunrise"]}, "events"),
        ({"arguments": {"password": "x"}}, "password looks like a secret"),
        ({"arguments": {"url": "https://ada:s3cr3t@chat.example.com"}}, "url looks like a secret"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(
    ask_for: Callable[..., None],
    send: Callable[..., None],
    told: list[str],
    wrong: dict[str, Any],
    sentence: str,
) -> None:
    ask_for(webhook("team_webhook") | wrong)
    with pytest.raises(UserError, match=sentence):
        load_notifications()
    send()
    assert told[0].startswith("nobody was notified of 'incident confirmed': ")
    assert "s3cr3t" not in told[0]


LEVELS = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 1.001, 1.06, 1.061, 1.058, 1.06]
"""Seconds of runs, the eighth of which is slower, as the next two confirm."""


@pytest.fixture
def runs(make_result: Callable[..., Result]) -> list[Result]:
    return [
        make_result(f"run-{number}", step_times=[level] * 20, submitted_at=time.time() - 3600 + number)
        for number, level in enumerate(LEVELS)
    ]


class Dies(BaseNotifier):
    """A worker that is killed while it tells: no `Exception`, as when Airflow ends its task."""

    def notify(self, context: Any) -> None:
        raise SystemExit("killed")


def test_what_a_killed_report_has_not_told_its_retry_tells_once(
    ask_for: Callable[..., None],
    make_context: Callable[..., Any],
    planned: Callable[..., Plan],
    servers: Any,
    runs: list[Result],
) -> None:
    task = task_of("report", plan=planned().model_copy(update={"runs": ()}).model_dump(mode="json"))
    for result in runs[:8]:
        publish(Store(), result)
    ask_for({"events": ["incident opened"], "notifier": f"{__name__}.Dies"})
    with pytest.raises(SystemExit, match="killed"):
        task.execute(make_context())

    ask_for(webhook("team_webhook", "incident opened"))
    task.execute(make_context())
    task.execute(make_context())  # cleared by somebody

    [(_, _, body)] = servers[1]
    assert body["sentence"].startswith("Suspected: tiny·fp32·2 on local 5.9 % slower since ")


def test_a_refused_run_is_told(
    ask_for: Callable[..., None], make_context: Callable[..., Any], servers: Any
) -> None:
    ask_for(webhook("team_webhook", "run failed"))
    context = make_context() | {"params": {"gpus": "3"}}
    with pytest.raises(SystemExit):
        task_of("check_params").execute(context)

    [(_, _, body)] = servers[1]
    assert body["sentence"].startswith("unknown GPU count '3' of llama3.1-25.04 tiny on cpu")


def test_a_failed_run_is_told_with_the_task_that_failed(
    ask_for: Callable[..., None],
    make_context: Callable[..., Any],
    planned: Callable[..., Plan],
    servers: Any,
) -> None:
    ask_for(webhook("team_webhook", "run failed"))
    context = make_context(pushed={FAILURE_KEY: "the disk is full"})
    with pytest.raises(AirflowFailException, match="have no valid result"):
        task_of("report", plan=planned().model_dump(mode="json")).execute(context)

    [(_, _, body)] = servers[1]
    assert body["sentence"] == (
        "0 of 1 runs have valid results; without: tiny·fp32·1; stage failed: the disk is full"
    )
