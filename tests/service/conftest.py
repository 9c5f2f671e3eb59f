"""A stand-in for a REST API, on real sockets, with answers set by the test."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import called
import pytest

from steptime.service.rest import AirflowClient

from . import airflow_openapi

Answer = tuple[int, Any]


@dataclass
class FakeApi:
    """The answers by `METHOD path` (without the query): a pair, or a function of the request's JSON."""

    url: str = ""
    answers: dict[str, Answer | Callable[[Any], Answer]] = field(default_factory=dict)
    requests: list[tuple[str, Any, str | None]] = field(default_factory=list)
    """`METHOD path`, JSON and Authorization header of each request."""

    def asked(self, what):
        """Return the JSON bodies of the requests to `what`."""
        return [body for asked, body, _ in self.requests if asked == what]


@pytest.fixture(autouse=True)
def as_airflow(monkeypatch):
    """Hold each request of the tests and its answer to what Airflow documents."""
    send = AirflowClient._send

    def sent(self, method, path, **request):
        response = send(self, method, path, **request)
        with suppress(ValueError):  # no JSON: what a proxy answers
            query = set(request.get("params") or ())
            body, answer = request.get("json"), response.json()
            airflow_openapi.check(method, unquote(path), query, body, response.status_code, answer)
        return response

    monkeypatch.setattr(AirflowClient, "_send", sent)


@pytest.fixture
def api():
    fake = FakeApi(answers={"POST /auth/token": (201, {"access_token": "first"})})

    class Handler(BaseHTTPRequestHandler):
        def _handle(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            what = f"{self.command} {unquote(urlsplit(self.path).path)}"
            fake.requests.append((what, body, self.headers.get("Authorization")))
            answer = fake.answers.get(what, (404, {"detail": "Not Found"}))
            code, content = answer(body) if callable(answer) else answer
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_PUT = _handle

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield fake
        server.shutdown()
        thread.join()


@pytest.fixture
def steptime(api, tmp_path, monkeypatch):
    """Return a function that runs the command line against the fake Airflow and returns the exit code."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.setenv("STEPTIME_STORE_URL", f"sqlite:///{tmp_path / 'store.db'}")
    monkeypatch.setenv("STEPTIME_AIRFLOW_URL", api.url)
    monkeypatch.setenv("STEPTIME_AIRFLOW_USER", "ada")
    monkeypatch.setenv("STEPTIME_AIRFLOW_PASSWORD", "secret")
    return lambda arguments: called.steptime(*arguments.split())
