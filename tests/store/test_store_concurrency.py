"""The metrics store when processes die in a transaction or write at once: real processes, both databases."""

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy
import stored

from steptime.store import database, schema
from steptime.store.run_queries import Store

pytestmark = pytest.mark.service

_FORK = multiprocessing.get_context("fork")


def _run_in_processes(target, arguments):
    """Run one forked process for each tuple of arguments, all at once; return their exit codes."""
    processes = [_FORK.Process(target=target, args=given) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=240)
    return [process.exitcode for process in processes]


def _publish_and_die(url, result):
    def die(_connection, _cursor, statement, *_):
        if "INSERT INTO readings" in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    sqlalchemy.event.listen(sqlalchemy.engine.Engine, "after_cursor_execute", die)
    stored.write(Store(url), result)


def _publish_all(url, results):
    for result in results:
        stored.write(Store(url), result)


def _measure_all(url, results):
    for result in results:
        stored.unjudged_writer(url).store_measurement(result)


def test_a_process_killed_while_it_publishes_leaves_nothing(store_url, make_result):
    store, result = Store(store_url), make_result()
    stored.write(store, make_result("before"))

    codes = _run_in_processes(_publish_and_die, [(store_url, result)])

    assert codes == [-signal.SIGKILL]
    assert [row["job_name"] for row in store.results(include_rejected=True)] == ["before"]
    with database.read_connection(store_url) as connection:
        count = connection.scalar(sqlalchemy.select(sqlalchemy.func.count()).select_from(schema.steps))
    assert count == 20, "no step of the killed one"
    assert stored.write(store, result), "the retry finds no leftovers"


def test_processes_may_publish_at_once_and_make_the_store_at_once(store_url, make_result):
    """Four processes open an empty database at once; each publishes one common run and four of its own."""
    shared = make_result("shared")
    by_process = [[make_result(f"job{process}-{number}") for number in range(4)] for process in range(4)]

    codes = _run_in_processes(
        _publish_all, [(store_url, [shared, *results, shared]) for results in by_process]
    )

    assert codes == [0, 0, 0, 0]
    store = Store(store_url)
    assert len(store.results()) == 17
    assert all(len(store.steps(row["job_name"])) == 20 for row in store.results())


def test_different_contents_of_one_run_never_mix(store_url, make_result):
    lengths = [20, 30, 40, 50]
    store = Store(store_url)
    stored.write(store, make_result("one", max_steps=10))

    codes = _run_in_processes(
        _measure_all, [(store_url, [make_result("one", max_steps=length)] * 5) for length in lengths]
    )

    assert codes == [0, 0, 0, 0]
    assert store.results() == [], "what is measured again is no result"
    measured = store.measured("one")
    assert len(measured.log.steps) in lengths
    with database.read_connection(store_url) as connection:
        window = connection.scalar(sqlalchemy.select(schema.runs.c.window))
    assert window == f"{len(measured.log.steps) // 2}:{len(measured.log.steps) - 1}"


def test_scales_that_are_published_at_once_are_all_relative_to_the_smallest(store_url, make_result):
    results = [make_result(f"run-{gpus}", gpus=gpus, tensor=gpus) for gpus in (1, 2, 3, 4, 6, 8)]
    Store(store_url).count()
    for repeat in range(4):
        at_once = [
            result.model_copy(update={"log": result.log.model_copy(update={"bytes_read": repeat})})
            for result in results
        ]
        with ThreadPoolExecutor(len(at_once)) as threads:
            list(threads.map(lambda to_write: stored.write(Store(store_url), to_write), at_once))

        assert {row["scaling_base_jobs"] for row in Store(store_url).results()} == {"run-1"}
