"""Result rows for readers: table columns and notes."""

import time

import pytest
import stored

from steptime.measure.report import (
    Totals,
    choose_columns,
    csv_text,
    describe_cost,
    format_column,
    list_notes,
    sum_up,
)
from steptime.recipes.models import Mode
from steptime.store.columns import COLUMNS
from steptime.store.run_models import Check, Verdict
from steptime.store.run_queries import Store


@pytest.fixture
def stored_rows(tmp_path):
    """Return a function that stores results and returns their rows."""

    def store_all(*results):
        store = Store(f"sqlite:///{tmp_path / 's.db'}")
        for result in results:
            stored.write(store, result)
        return list(store.results(include_rejected=True, in_reading_order=True))

    return store_all


def flat(result_times, **changes):
    return {"step_times": [result_times] * 20, **changes}


def test_what_all_runs_share_is_said_once(stored_rows, make_result):
    rows = stored_rows(make_result("one", gpus=1, **flat(0.2)), make_result("two", gpus=2, **flat(0.25)))

    columns, title = choose_columns(rows)

    assert title == (
        "state valid, workload llama3.1-25.04, GPU type cpu, scaling weak, cluster local, MBS 1, "
        "window 10:19 steps, efficiency relative to 1 GPU"
    )
    assert [column.name for column in columns] == [
        *("label", "gpus", "global_batch_size", "step_time_mean_s", "step_time_std_s", "tokens_per_s"),
        *(
            "tokens_per_s_per_gpu",
            "scaling_efficiency_percent",
            "peak_memory_gib",
            "gpu_hours",
        ),
        *("submitted_at", "queue_wait_s"),
    ]


def test_what_differs_gets_a_column(stored_rows, make_result):
    bad = Verdict(checks=(Check(name="x", passed=False, message="Expected one thing, but found another."),))
    rows = stored_rows(
        make_result("one", max_steps=10, gpus=1),
        make_result("save", mode=Mode.CHECKPOINT_SAVE),
        make_result("bad", verdict=bad, measurement=None),
    )
    other = [
        {**row, "workload": "nemotron4-25.04", "flops_formula": "nemotron4-24.11", "mfu_percent": 41.0}
        for row in rows[:1]
    ]

    listed = [*rows, *other]
    columns, title = choose_columns(listed, full_names=True)

    assert title == "GPU type cpu, scaling weak, cluster local, MBS 1"
    assert [column.name for column in columns] == [
        *("job_name", "state", "workload", "gpus", "global_batch_size", "window"),
        *("step_time_mean_s", "step_time_std_s", "tokens_per_s", "tokens_per_s_per_gpu"),
        *("mfu_percent", "flops_formula", "peak_memory_gib", "checkpoint_save_s", "checkpoint_blocked_s"),
        *("gpu_hours", "submitted_at", "queue_wait_s"),
    ]
    state = next(column for column in columns if column.name == "state")
    assert set(format_column(state, listed)) == {"valid", "rejected"}
    assert choose_columns([]) == ([], "")


def test_reasons_and_warnings_are_told(stored_rows, make_result):
    broken = Check(name="x", passed=False, message="Expected A, but found B.")
    odd = Check(name="y", passed=False, severity="warning", message="It is odd.")
    rows = stored_rows(
        make_result("bad", verdict=Verdict(checks=(broken, odd)), measurement=None),
        make_result("noisy", verdict=Verdict(checks=(odd,))),
        make_result("good"),
    )

    assert sorted(list_notes(rows)) == [
        "tiny·fp32·2 (bad) has a warning: It is odd.",
        "tiny·fp32·2 (bad) is rejected: Expected A, but found B.",
        "tiny·fp32·2 (noisy) counts, but note: It is odd.",
    ]
    assert {row["job_name"]: (row["reason"], row["warnings"]) for row in rows} == {
        "bad": ("Expected A, but found B.", "It is odd."),
        "noisy": (None, "It is odd."),
        "good": (None, None),
    }


def test_totals_of_rows_count_what_is_known():
    rows = [
        {"state": "valid", "gpu_hours": 1.5, "queue_wait_s": 10.0},
        {"state": "rejected", "gpu_hours": 0.5, "queue_wait_s": 30.0},
        {"state": "rejected", "gpu_hours": None, "queue_wait_s": None},
    ]
    assert sum_up(rows) == Totals(3, 2, 2.0, 20.0, 30.0)
    assert sum_up([]) == Totals(0, 0, 0.0, None, None)
    assert Totals(1, 0, 99.96, 3.0, None).sentence == "1 run · 100 GPU-hours"


def test_csv_has_a_line_of_names_and_a_line_for_each_row():
    rows = [{"a": 0, "b": None}, {"a": 1, "b": 'x, "y"'}]
    assert csv_text(rows, ["b", "a", "c"]) == 'b,a,c\n,0,\n"x, ""y""",1,\n'
    assert csv_text([], ["a"]) == "a\n"
    assert csv_text([{"a": "\x1b[2J\r1\n2"}], ["a"]) == 'a\n"\\x1b[2J\\r1\n2"\n'


def test_the_cluster_that_cost_most_is_named_first():
    rows = [
        {"cluster": "east", "gpu_hours": 20.0, "state": "valid"},
        {"cluster": "west", "gpu_hours": 1024.0, "state": "valid"},
        {"cluster": "west", "gpu_hours": 256.0, "state": "rejected"},
    ]
    earlier = [{"cluster": "east", "gpu_hours": 3000.0, "state": "valid"}]
    assert describe_cost(rows, earlier) == (
        "west 1,280 GPU-hours (0 before), east 20 GPU-hours (3,000 before); 256 GPU-hours on failed runs"
    )
    assert describe_cost([], []) == ""


def test_times_are_those_of_the_readers_clock(monkeypatch):
    [submitted] = [column for column in COLUMNS if column.name == "submitted_at"]
    for zone, shown in (("Asia/Tokyo", "23:26"), ("America/St_Johns", "11:56")):
        with monkeypatch.context() as there:
            there.setenv("TZ", zone)
            time.tzset()
            assert shown in format_column(submitted, [{"submitted_at": 1_790_000_760.0}])[0]
    time.tzset()
