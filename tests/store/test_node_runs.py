"""The runs that are evidence on nodes, read from both kinds of database."""

import time

import stored

from steptime.durations import WEEK_S
from steptime.judging.judgements import judge_all
from steptime.judging.node_evidence import read_node_runs
from steptime.store.run_queries import Store


def test_runs_since_a_confirmed_change_began_are_a_level_of_their_own(store_url, make_result):
    store, now = Store(store_url), time.time()
    for number, seconds in enumerate((1.0, 1.001, 1.002, 1.0, 1.001, 1.002, 1.0, 1.1, 1.101, 1.102)):
        at = now - (10 - number) * WEEK_S / 7
        result = make_result(f"run{number}", step_times=[seconds] * 20, submitted_at=at)
        stored.write(store, result)
    judge_all(store)
    runs = read_node_runs(store, now)
    assert [(run.job_name, run.is_usual) for run in runs] == [
        ("run6", True),
        *((f"run{number}", False) for number in (7, 8, 9)),
    ]
