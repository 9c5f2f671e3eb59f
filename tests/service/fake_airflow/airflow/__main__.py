"""A stand-in for `python -m airflow`: real processes and sockets that behave like Airflow's, in milliseconds.

PYTHONPATH puts it in front of the real one. Files in AIRFLOW_HOME set faults: `break-<component>` (that
component ends at once), `ill-<component>` (it is never healthy), `broken-dag` (an import error instead of the
DAG, of an earlier start if the file has text), `deaf-scheduler` (SIGTERM does not end it, and it forks a
process at each SIGUSR1), `busy` (the first request that changes something gets an error). With `tell-ends`,
each component that SIGTERM ends appends its name to the file `ends`.
"""

import configparser
import json
import os
import signal
import sqlite3
import sys
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HOME = Path(os.environ["AIRFLOW_HOME"])


class Api(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/api/v2/monitor/health"):
            beat = datetime.now(UTC).isoformat()
            names = ("scheduler", "triggerer", "dag_processor")
            health = {name: {"status": _status(name), f"latest_{name}_heartbeat": beat} for name in names}
            self._answer(200, {"metadatabase": {"status": "healthy"}, **health})
        elif self.path.startswith("/api/v2/importErrors"):
            broken = HOME / "broken-dag"
            error = {"filename": "steptime_dags.py", "stack_trace": "Traceback\nSyntaxError: bad\n"}
            read_at = 0 if broken.exists() and broken.read_text() else time.time()
            error["timestamp"] = datetime.fromtimestamp(read_at, UTC).isoformat()
            errors = [error] * broken.exists()
            self._answer(200, {"import_errors": errors, "total_entries": len(errors)})
        elif self.path.startswith("/api/v2/dags/~/dagRuns"):
            run = {"dag_id": "own", "dag_run_id": "r1", "state": "running"}
            self._answer(200, {"dag_runs": [run], "total_entries": 1})
        elif self.path.startswith("/api/v2/dags"):
            dags = [] if (HOME / "broken-dag").exists() else [{"dag_id": "own", "is_paused": False}]
            self._answer(200, {"dags": dags, "total_entries": len(dags)})

    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = json.loads((HOME / "passwords.json").read_text())
        if known.get(said["username"]) == said["password"]:
            self._answer(201, {"access_token": "token"})
        else:
            self._answer(401, {"detail": "Invalid credentials"})

    def _answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _status(component):
    """Return `healthy` if the component wrote its process id and belongs to this start's session."""
    if (HOME / f"ill-{component}").exists():
        return "unhealthy"
    try:
        told = int((HOME / f"{component.replace('_', '-')}.pid").read_text())
        return "healthy" if os.getsid(told) == os.getsid(0) else "unhealthy"
    except (FileNotFoundError, ProcessLookupError):
        return "unhealthy"


def _serve():
    config = configparser.ConfigParser()
    config.read(HOME / "airflow.cfg")
    ThreadingHTTPServer((config["api"]["host"], config["api"].getint("port")), Api).serve_forever()


def _tell_pid(name, pid):
    """Write a process id in one step, as tests may read the file at any moment."""
    half = HOME / f"{name}.pid.half"
    half.write_text(str(pid))
    half.replace(HOME / f"{name}.pid")


def _child(*, own_group):
    """Fork a process that ignores SIGTERM: a task gets its own process group, an idle worker does not."""
    pid = os.fork()
    if pid == 0:
        if own_group:
            os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    return pid


def main():
    component = sys.argv[1]
    if component == "db":
        while (HOME / "hold-db").exists():
            time.sleep(0.02)
        sqlite3.connect(HOME / "airflow.db").execute("CREATE TABLE IF NOT EXISTS migrated (id int)")
    if (HOME / f"break-{component}").exists():
        sys.exit(f"{component} is broken on purpose")
    if component == "db":
        return
    if component == "scheduler":
        _tell_pid("task", _child(own_group=True))
        _tell_pid("worker", _child(own_group=False))
    if (HOME / "tell-ends").exists():
        signal.signal(signal.SIGTERM, lambda *_: _tell_end(component))
    if component == "scheduler" and (HOME / "deaf-scheduler").exists():
        _tell_pid("late", 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: _tell_pid("late", _child(own_group=True)))
    _tell_pid(component, os.getpid())  # last, as it counts as healthy then
    if component == "api-server":
        _serve()
    while True:
        signal.pause()


def _tell_end(component):
    with (HOME / "ends").open("a") as ends:
        ends.write(f"{component}\n")
    os._exit(0)


if __name__ == "__main__":
    main()
