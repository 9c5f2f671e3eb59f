"""Checkpoint lines in the forms of the documents and of NeMo's releases, alone and in sequence."""

import json

import pytest
from logs.line_forms import read_chunks

from steptime.logs.training_log import CheckpointTiming
from steptime.measure.metrics import checkpoint_seconds

SAVE = (
    "Global Checkpoint Save : Rank: 0 : Iteration: 50 : Start time: 1744408121.151s : Save duration: 4.389s"
)
LOAD = (
    "Global Checkpoint Load : Rank : 0 : Start time : 1744407969.270s : Time spent in load_checkpoint: 9.712s"
)
SCHEDULED = "Scheduled async checkpoint save for /c/step={}.ckpt"
ENDED = "Async checkpoint save for step {} (/c/step={}.ckpt) finalized successfully."
STEP = "Training epoch 0, iteration {0}/9 | global_step: {0} | train_step_timing in s: {1}"


def read(*lines):
    return read_chunks(["".join(f"{line}\n" for line in lines).encode()])


def timing(kind, started_at, duration_s, *, iteration=None):
    return CheckpointTiming(
        kind=kind, iteration=iteration, started_at=started_at, duration_s=duration_s, blocked_s=duration_s
    )


def unfinished(log):
    return [problem for problem in log.problems if problem.kind == "checkpoint_not_finalised"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SAVE, timing("save", 1744408121.151, 4.389, iteration=50)),
        (LOAD, timing("load", 1744407969.27, 9.712)),
        (
            "Global Checkpoint Save: Rank:0: Start time: 1744408121.151s: Save duration: 4.389s",
            timing("save", 1744408121.151, 4.389),
        ),
    ],
)
@pytest.mark.parametrize(
    "prefix", ["", "[NeMo I 2025-04-11 14:48:45 nemo_logging:393] ", "text glued*.distcp files["]
)
@pytest.mark.parametrize("behind", ["\n", "[NeMo I] more\n", ""])
def test_timings(line, expected, prefix, behind):
    assert read_chunks([f"{prefix}{line}{behind}".encode()]).checkpoints == (expected,)


def test_one_rank_speaks_for_all():
    log = read(
        *(SAVE.replace("Rank: 0", f"Rank: {rank}").replace("4.389", f"4.38{rank}") for rank in (3, 1, 2))
    )
    assert [save.duration_s for save in log.checkpoints] == [4.381]


def test_what_several_ranks_print_of_one_save_counts_once():
    log = read(SAVE, *[SCHEDULED.format(49)] * 3, *[ENDED.format(50, 49)] * 3)
    assert [(save.iteration, save.asynchronous) for save in log.checkpoints] == [(50, True)]
    assert unfinished(log) == []


def test_a_save_may_end_in_either_of_the_two_lines_that_tell_of_it():
    """NeMo of March 2025 prints only the first line; NeMo 2.2 and later print both."""
    other = "Successfully saved checkpoint from iteration      49 to /c/step=49.ckpt"
    for ends in ([ENDED.format(50, 49)], [other], [ENDED.format(50, 49), other]):
        log = read(SCHEDULED.format(49), *ends)
        assert [save.asynchronous for save in log.checkpoints] == [True]
        assert unfinished(log) == []


def test_an_asynchronous_save_that_never_ended():
    both = "Successfully saved checkpoint from iteration      24 to /c/step=24.ckpt"
    log = read(SCHEDULED.format(24), both, ENDED.format(25, 24), SCHEDULED.format(49))
    (problem,) = unfinished(log)
    assert (problem.message, problem.fatal) == ("1 of 2 asynchronous checkpoint saves did not end", True)


def test_a_save_that_a_crash_ended_is_the_earlier_attempts():
    """The new attempt trained those steps again and completed their save."""
    first, second = (
        [*(STEP.format(step, time) for step in range(5)), SCHEDULED.format(4)] for time in (1.5, 1.6)
    )
    log = read(*first, *second, ENDED.format(5, 4))
    (problem,) = unfinished(log)
    assert problem.message == "in an earlier attempt: 1 of 1 asynchronous checkpoint saves did not end"
    assert not problem.fatal
    assert len(log.checkpoints) == 2


@pytest.mark.parametrize(
    ("ended_at", "duration_s"),
    [("14:48:51", 14.0), ("14:48:41", 4.0), ("14:48:01", None), ("14:68:01", None)],
)
def test_dates_tell_the_duration_to_the_second(ended_at, duration_s):
    """A clock that was set back or an invalid date gives no duration."""
    log = read(
        f"[NeMo I 2025-04-11 14:48:41 pl:1] {SAVE}",
        SCHEDULED.format(49),
        f"[NeMo I 2025-04-11 {ended_at} model_checkpoint:1] {ENDED.format(50, 49)} {600 * 'x'}",
    )
    (save,) = log.checkpoints
    assert (save.blocked_s, save.duration_s) == (4.389, duration_s)


def test_a_save_that_begins_is_another_than_the_one_before():
    log = read(SAVE, "saving checkpoint at iteration 60 to /x/saved in torch_dist format")
    assert [(save.iteration, save.duration_s) for save in log.checkpoints] == [(50, 4.389), (60, None)]


@pytest.mark.parametrize(
    ("transfers", "duration_s"),
    [
        ([{"kind": "load", "duration_s": 1.0}, {"kind": "save", "duration_s": 13.777}], 13.777),
        ([{"kind": "save", "duration_s": None}], 14.0),
        ([], 14.0),
        ("nonsense", 14.0),
        (["nonsense"], 14.0),
    ],
)
def test_the_trainers_own_record_is_exact(transfers, duration_s):
    record = {"state": "completed", "checkpoints": transfers}
    log = read(
        f"[NeMo I 2025-04-11 14:48:41 pl:1] {SAVE}",
        SCHEDULED.format(49),
        f"[NeMo I 2025-04-11 14:48:51 model_checkpoint:1] {ENDED.format(50, 49)}",
        f"steptime.result {json.dumps(record)}",
    )
    (save,) = log.checkpoints
    assert (save.blocked_s, save.duration_s) == (4.389, duration_s)


def test_a_megatron_log_that_resumed_lacks_no_steps():
    """The load names its iteration; without that the steps before the first would count as missing."""
    step = (
        " [2026-02-03 04:05:06] iteration {:8d}/      20 | elapsed time per iteration (ms): 3125.5 |"
        " lm loss: 1.0E+01 |"
    )
    loaded = "  successfully loaded checkpoint from /x/saved [ t 1/2, p 1/4 ] at iteration {}"
    steps = [step.format(iteration) for iteration in range(11, 21)]
    assert read(loaded.format(10), *steps).problems == ()
    (problem,) = read(loaded.format(8), *steps).problems
    assert (problem.kind, problem.steps) == ("missing_steps", (8, 9))


def test_a_save_without_a_time_does_not_hide_the_one_before():
    """Megatron saves once more after training, without its timer; other text may precede a timer."""
    log = read(
        "saving checkpoint at iteration    2000 to /x/checkpoints",
        "successfully saved checkpoint at iteration    2000 to /x/checkpoints",
        "(min, max) time across ranks (ms):save-checkpoint .....................: (1658.80, 1658.85)",
        "",
        "[after training is done] datetime: 2025-02-05 21:43:14 ",
        "saving checkpoint at iteration    2000 to /x/checkpoints",
        "successfully saved checkpoint at iteration    2000 to /x/checkpoints",
    )
    assert checkpoint_seconds(log)["checkpoint_save_s"] == 1.65885
    loads = [LOAD, "successfully loaded checkpoint from /x/saved [ t 1/2, p 1/4 ] at iteration 10"]
    assert checkpoint_seconds(read(*loads))["checkpoint_load_s"] == 9.712


def test_a_save_that_never_ended_does_not_hide_the_one_before():
    whole = [f"[NeMo I 2025-04-11 14:48:41 pl:1] {SAVE}", SCHEDULED.format(49)]
    ended = f"[NeMo I 2025-04-11 14:48:51 model_checkpoint:1] {ENDED.format(50, 49)}"
    begun = [SAVE.replace("Iteration: 50", "Iteration: 99"), SCHEDULED.format(99)]
    times = {"checkpoint_save_s": 14.0, "checkpoint_blocked_s": 4.389, "checkpoint_load_s": None}
    assert checkpoint_seconds(read(*whole, ended, *begun)) == times
    only_begun = times | {"checkpoint_save_s": None}
    assert checkpoint_seconds(read(*whole)) == only_begun
