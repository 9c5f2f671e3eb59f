"""No page reads all of a large store to show a little of it: both kinds of database use the indexes."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from repeated_runs import repeat_run

from query_plans import plan, queries_of
from steptime.results import database, occurring
from steptime.results.judgement_rows import latest_judged_rows
from steptime.results.models import Result
from steptime.results.store import Store

MakeResult = Callable[..., Result]

READS_ALL = re.compile(r"Seq Scan on runs|SCAN runs$")
"""As PostgreSQL and SQLite name a step that reads the table from its beginning to its end."""
READS: dict[str, Callable[[Store], Any]] = {
    "the newest": lambda store: store.results(limit=100),
    "the newest of a workload": lambda store: store.results(limit=100, workload="llama3.1-25.04"),
    "the newest of a search": lambda store: store.results(limit=100, search="llama"),
    "how many there are": lambda store: store.count(include_rejected=True),
    "what to filter by": lambda store: store.choices(),
    "what all of a time took": lambda store: store.totals(since=1.0),
    "the runs of a DAG run": lambda store: store.results(dag_id="llama31", dag_run_id="run7"),
    "the newest of each series": occurring.newest_of_each,
    "the latest of each series": lambda store: latest_judged_rows(store, 1.0, 6),
}


BY_TIME = ("the newest", "the newest of a workload")


@pytest.mark.slow
def test_no_page_reads_all_of_the_runs(store_url: str, make_result: MakeResult) -> None:
    store = Store(store_url, dags=["llama31"])
    store.publish(make_result("job"))
    repeat_run(store_url, 10_000)
    vacuum(store_url)

    plans = {
        name: [step for query in queries_of(lambda: read(store)) for step in plan(store_url, query)]  # noqa: B023
        for name, read in READS.items()
    }

    assert not [name for name, steps in plans.items() if any(map(READS_ALL.search, steps))], plans
    assert all("ix_runs_time" in " ".join(plans[name]) for name in BY_TIME), plans
    assert "ix_runs_dag_id_dag_run_id" in " ".join(plans["the runs of a DAG run"])


def vacuum(url: str) -> None:
    """Let PostgreSQL look at what it has, as it does by itself after a while."""
    with database.read_connection(url) as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")


def test_a_listing_is_one_query_whatever_its_length(store_url: str, make_result: MakeResult) -> None:
    store = Store(store_url, dags=["llama31"])
    store.publish(make_result("job"))
    repeat_run(store_url, 100)

    ((statement, _),) = queries_of(lambda: len(store.results()) == 100)
    assert "steps " not in statement


@pytest.mark.long
def test_postgresql_knows_that_a_reader_may_read_nearly_all(
    postgresql_url: str, make_result: MakeResult
) -> None:
    """Where it takes them for few, a search of a large store looks up each run by itself."""
    store = Store(postgresql_url, dags=["llama31", "nemotron4"])
    store.publish(make_result("job"))
    repeat_run(postgresql_url, 10_000)
    vacuum(postgresql_url)

    ((statement, parameters),) = queries_of(store.results)
    with database.read_connection(postgresql_url) as connection:
        ((plan,),) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
    assert plan[0]["Plan"]["Plan Rows"] > 9_000
