"""The whole row of a log: its state and reason, its window, and the window's numbers."""

import pytest
from logs import line_forms

from steptime.measure.log_rows import COLUMNS, log_row
from steptime.recipes.models import Window

WHOLE, FRONT, BACK = (line_forms.nemo2_log(steps) for steps in (range(50), range(10), range(10, 50)))
GAP = line_forms.nemo2_log(step for step in range(50) if step not in (40, 41))
STARTED = b'steptime.start {"schema": 1}\n' + WHOLE
ENDED = STARTED + b'steptime.result {"state": "completed"}\n'
NO_END = "the trainer wrote no record of its end: it was ended from outside, or still runs"
SHORT = "training ended at step 9 of 49: 40 steps are missing at the end"
LACKS = "the log lacks global steps"


def window(first, last, mean_s, steps, **other):
    """Return the numbers of a window in which each step takes 1 ms more than the one before."""
    times = {"step_time_mean_s": mean_s, "step_time_median_s": mean_s, "steps_in_window": steps}
    return {"window": f"{first}:{last}", "window_from": "--window", **times, **other}


ROWS = [
    # a log, a window, and the row without the log's place, format and size
    (
        *(WHOLE, Window(first=35, last=44)),
        {"state": "complete", "steps": 50, **window(35, 44, 2.6395, 10)},
    ),
    (WHOLE, None, {"state": "complete", "steps": 50, **window(49, 49, 2.649, 1, window_from="last step")}),
    (
        *(BACK, Window(first=10, last=14)),
        {"state": "complete", "warnings": f"{LACKS} 0 to 9", "steps": 40, **window(10, 14, 2.612, 5)},
    ),
    (
        *(BACK, Window(first=5, last=14)),
        {
            **{"state": "incomplete", "reason": "5 of the window's steps are missing, first step 5"},
            **{"warnings": f"{LACKS} 0 to 9", "steps": 40, **window(5, 14, 2.612, 5)},
        },
    ),
    (
        *(FRONT, Window(first=5, last=14)),
        {"state": "incomplete", "reason": SHORT, "steps": 10, "last_step": 9, **window(5, 14, 2.607, 5)},
    ),
    (
        *(FRONT, Window(first=20, last=24)),
        {
            **{"state": "incomplete", "steps": 10, "last_step": 9},
            **{"window": "20:24", "window_from": "--window", "global_batch_size": 256, "loss": 12.81},
            "reason": f"{SHORT}; has no step time in the window 20:24: global steps 20 to 24 are missing; "
            "the log has steps 0 to 9",
        },
    ),
    (
        *(GAP, Window(first=39, last=41)),
        {
            **{"state": "incomplete", "reason": "2 of the window's steps are missing, first step 40"},
            **{"warnings": f"{LACKS} 40 to 41", "steps": 48, **window(39, 41, 2.639, 1)},
        },
    ),
    (
        *(GAP, Window(first=42, last=44)),
        {"state": "complete", "warnings": f"{LACKS} 40 to 41", "steps": 48, **window(42, 44, 2.643, 3)},
    ),
    (
        *(ENDED, Window(first=49, last=49)),
        {"state": "complete", "steps": 50, **window(49, 49, 2.649, 1)},
    ),
    (
        *(STARTED, Window(first=49, last=49)),
        {"state": "failed", "reason": NO_END, "steps": 50, **window(49, 49, 2.649, 1)},
    ),
    (b"", None, {"state": "failed", "reason": "the log is empty", "steps": 0}),
    (
        *(WHOLE, Window(first=40, last=59)),
        {
            **{"state": "incomplete", "reason": "the log holds 10 of the window's 20 steps", "steps": 50},
            **window(40, 59, 2.6445, 10),
        },
    ),
    (b"nothing\n", None, {"state": "failed", "reason": "no training step in the log's 8 bytes", "steps": 0}),
]


def test_a_log_as_a_row(tmp_path):
    log = tmp_path / "log-x.out"
    for content, asked, beside in ROWS:
        log.write_bytes(content)
        row = log_row([log], asked)
        assert list(row) == [column.name for column in COLUMNS]
        told = {name: value for name, value in row.items() if value is not None}
        assert (told.pop("log_path"), told.pop("log_bytes")) == (str(log), len(content))
        of_steps = {"format": "nemo2", "last_step": 49, "global_batch_size": 256, "loss": 12.81}
        of_steps |= {"mode": "performance", "peak_memory_gib": 72972500992 / 2**30}
        told.pop("step_time_std_s", None)
        assert told == pytest.approx((of_steps if beside["steps"] else {"format": "none"}) | beside), asked


def test_a_loss_that_is_none_and_batches_that_differ_are_left_out(tmp_path):
    log = tmp_path / "log-x.out"
    other = line_forms.nemo2(49, loss="nan").replace("global_batch_size: 256", "global_batch_size: 128")
    log.write_bytes(line_forms.nemo2_log(range(49)) + other.encode())
    row = log_row([log])
    assert (row["loss"], row["global_batch_size"], row["state"]) == (None, None, "failed")


def test_a_loaded_run_lacks_no_step_before_its_first(tmp_path, make_result):
    run = make_result().run.model_copy(
        update={"first_step": 10, "max_steps": 50, "window": Window(first=20, last=29)}
    )
    (tmp_path / "run.json").write_text(run.model_dump_json())
    log = tmp_path / "log-x.out"
    save = b"Global Checkpoint Save : Rank: 0 : Iteration: 49 : Start time: 17.2s : Save duration: 2.5s\n"
    log.write_bytes(BACK + save)
    row = log_row([log])
    assert (row["state"], row["steps"], row["warnings"]) == ("complete", 40, None)
    planned = {"experiment": run.experiment, "max_steps": 50, "global_batch_size": 16, "size": "tiny"}
    assert {name: row[name] for name in planned} == planned, "though the lines have another batch"
    assert row["log_bytes"] == log.stat().st_size
