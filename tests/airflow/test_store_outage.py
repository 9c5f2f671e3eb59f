"""PostgreSQL stops, dies within a transaction or fails over while a task works: the task waits for it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import psycopg
import pytest
import sqlalchemy
import structlog
from postgresql_service import started_postgresql
from stored import publish

from steptime.airflow.assets import published_results
from steptime.judging.judgements import run_writer
from steptime.store.database import close_engines
from steptime.store.run_queries import Store
from steptime.waiting import poll_until

from .conftest import (
    checked_run,
    event_of,
    handle_of,
    names_of,
    task_of,
    trigger_of,
)

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def server():
    with started_postgresql() as server:
        yield server


@pytest.fixture
def store(server, home, monkeypatch):
    """Return the store that the test's tasks use."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    close_engines()
    monkeypatch.setenv("STEPTIME_STORE_URL", server.url)
    return Store()


@pytest.fixture
def make_work(store, make_context, make_result, submission, planned):
    """Return a function that prepares a run for this task and returns what executes the task."""

    def parse():
        submitted = submission(STAND_IN_STEP_S="0.001")
        asyncio.run(event_of(trigger_of(submitted, make_context())))
        store.count()
        context = make_context(submitted=submitted)
        return lambda: task_of("performance.parse").execute(context)

    def validate():
        result = make_result("job")
        run_writer(store).store_measurement(result)
        return lambda: task_of("performance.validate", handle=handle_of(result)).execute(make_context())

    def publish_():
        handle = checked_run(make_result("job"))
        asset = {published_results("llama3.1"): SimpleNamespace(extra={})}
        context = make_context() | {"outlet_events": asset}
        return lambda: task_of("performance.publish", handle=handle).execute(context)

    def report():
        context = make_context()
        publish(store, make_result("job", gpus=1, dag_run_id=context["ti"].run_id))
        return lambda: task_of("report", plan=names_of(planned())).execute(context)

    works = {"parse": parse, "validate": validate, "publish": publish_, "report": report}
    return lambda task: works[task]()


STATES = {"parse": ("measured", False), "validate": ("valid", False), "publish": ("valid", True)}
"""The state of the run after each task, and whether it is published."""


@pytest.mark.parametrize(
    ("task", "outage"),
    [
        *(("parse", "dies while it works"), ("validate", "dies while it works")),
        *(("publish", "fails over"), ("report", "stopped")),
    ],
)
def test_a_task_waits_for_the_store(task, outage, make_work, server):
    work = make_work(task)
    statements = "SELECT" if task == "report" else ("INSERT INTO", "UPDATE")
    dies = _stops_before(server, statements) if outage == "dies while it works" else nullcontext()
    with structlog.testing.capture_logs() as said, dies, ThreadPoolExecutor(1) as thread:
        if outage != "dies while it works":
            server.stop(at_once=outage == "stopped")
        if outage == "fails over":
            server.start(standby=True)
        done = thread.submit(work)
        try:
            warned = poll_until(lambda: _warnings(said) or done.done(), every_s=0.05, timeout_s=120)
        finally:
            server.promote() if outage == "fails over" else server.start()
        done.result(timeout=120)

    assert warned == _warnings(said)[: len(warned)], "it has warned before the server was back"
    assert "The store is asked again" in warned[0]
    assert "up to 12.0 h" in warned[0]
    if task in STATES:
        with psycopg.connect(server.url) as connection:
            [row] = connection.execute("SELECT state, published_at IS NOT NULL FROM runs").fetchall()
            [(steps,)] = connection.execute("SELECT count(*) FROM steps").fetchall()
        assert (row, steps) == (STATES[task], 20), "nothing twice, nothing half"


@contextmanager
def _stops_before(server, statements):
    """Stop the server right before the first of these statements, in a transaction that has begun."""
    left = [server]

    def stop(_connection, _cursor, statement, *_):
        if left and statement.startswith(statements):
            left.pop().stop()

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "before_cursor_execute", stop)
    yield
    sqlalchemy.event.remove(sqlalchemy.engine.Engine, "before_cursor_execute", stop)


def _warnings(said):
    return [line["event"] for line in said if "metrics store" in line["event"]]
