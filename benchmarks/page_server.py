"""The pages' server without Airflow's login, for a user who may read the made store, and what pages ask.

    python benchmarks/page_server.py PORT PROCESSES

serves the store of STEPTIME_STORE_URL until it is ended: as Airflow's API server does, in as many processes.
"""

import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlencode

import httpx  # noqa: TID253 - nothing imports a benchmark
import psutil

from large_store import RETIRED
from steptime.results.columns import CHOICES, COLUMNS
from steptime.results.store import Store

STATIC = Path(__file__).parents[1] / "plugins" / "steptime" / "web" / "static"
READABLE = frozenset({"llama31", "scaling_sweep"})
DAY_S = 86_400
Asked = tuple[str, ...]
"""Addresses below `api/` that a page asks for one after the other."""


def make_app() -> Any:
    """The application that Airflow mounts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Airflow itself imports
        from airflow.api_fastapi.core_api.security import get_user

        from steptime.web import permissions
        from steptime.web.app import create_app

    manager: Any = SimpleNamespace(
        get_authorized_dag_ids=lambda **_: READABLE, is_authorized_dag=lambda **_: True
    )
    patched: Any = permissions
    patched.get_auth_manager = lambda: manager
    patched.DagModel.get_team_name = lambda _dag_id: None
    app = create_app()
    app.dependency_overrides[get_user] = lambda: SimpleNamespace(get_name=lambda: "reader")
    return app


def pages(store: Store, now: float) -> dict[str, list[Asked]]:
    """What each page asks for, by its name; several selections where people choose one of them."""
    newest = store.results(limit=1)[0]
    job, before = (
        row["job_name"] for row in store.results(size=newest["size"], gpus=newest["gpus"], limit=2)
    )
    alike = {column.name: newest[column.name] for column in COLUMNS if column.choice and column.series}
    values = store.choices()
    week, year = (now - days * DAY_S for days in (7, 365))
    return {
        "This week": [_comparison(week)],
        "This week, of another time": [*map(_comparison, (now - DAY_S, now - 30 * DAY_S, year))],
        "Runs": [_runs()],
        **{f"Runs by {name}": [_runs(**{name: value}) for value in values[name]] for name in CHOICES},
        "Runs by several filters": [
            _runs(size="size3", dtype="fp8", gpus=64),
            _runs(gpu_type=RETIRED, gpus=64),
            _runs(workload="llama3.1-25.04", cluster="west", mode="performance", state="valid"),
            _runs(size="size3", state="rejected"),
        ],
        "Runs of a time": [_runs(since=week), _runs(since=year), _runs(since=year, size="size3")],
        "Runs by a search": [
            *(_runs(search=words) for words in ("size3", "size3 made-00", RETIRED, "llama31", "no such run")),
            _runs(search="missing", size="size3"),
        ],
        "Tab of a DAG run": [_runs(dag_id="llama31", dag_run_id="made_3_5")],
        "Tab of a sweep's DAG run": [_runs(dag_id="scaling_sweep", dag_run_id="made_3")],
        "Trend": [("series", f"trend/{quote(job)}")],
        "Scaling": [("scaling",), ("scaling?together=scaling_sweep/made_3",)],
        "Run": [(f"runs/{quote(job)}",)],
        "Run beside another": [(f"differences?{urlencode({'run': job, 'other': before})}",)],
        "Runs to lay beside": [_runs(limit=written(r"OFFERED = (\d+)", "differences.js"), **alike)],
    }


@contextmanager
def serving(url: str, processes: int = 1) -> Iterator[tuple[str, psutil.Process]]:
    """The address below which a server of its own answers, and its process; it is stopped at the end.

    Of several, that process answers nothing itself: its children do.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, __file__, str(port), str(processes)]
    server = psutil.Popen(command, env=os.environ | {"STEPTIME_STORE_URL": url})
    address = f"http://127.0.0.1:{port}/api/"
    try:
        while True:
            try:
                httpx.get(f"{address}columns").raise_for_status()
                break
            except httpx.ConnectError:
                if server.poll() is not None:
                    raise SystemExit("the pages' server did not start; what it printed is above") from None
                time.sleep(0.2)
        yield address, server
    finally:
        server.terminate()
        server.wait()


def written(pattern: str, module: str) -> int:
    """The number that a module of the pages gives to a name."""
    found = re.search(pattern, (STATIC / module).read_text())
    if found is None:
        raise SystemExit(f"{module} has no {pattern} any more: look what the page asks for now")
    return int(found[1])


def _comparison(since: float) -> Asked:
    return (f"comparison?{urlencode({'since': int(since)})}",)


def _runs(**query: Any) -> Asked:
    limit = {"limit": written(r"SHOWN = (\d+)", "runs.js")}
    return (f"results?{urlencode(limit | query)}",)


def main() -> None:
    """Serve on 127.0.0.1."""
    import uvicorn

    port, processes = map(int, sys.argv[1:])
    app = "page_server:make_app"  # each process makes its own
    uvicorn.run(app, factory=True, workers=processes, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
