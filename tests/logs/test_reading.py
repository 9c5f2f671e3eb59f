"""What a whole log says of its run: whether it is complete, printed once or twice, and has valid numbers."""

import gzip
import math
from dataclasses import asdict

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kept import assert_kept
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.errors import UserError
from steptime.logs.finding import find_logs
from steptime.logs.formats import writer_label
from steptime.logs.reader import read_log, unpack_log
from steptime.logs.training_log import Problem


def kinds(log):
    """Return the kinds of the problems, with whether they are fatal."""
    return {problem.kind: problem.fatal for problem in log.problems}


def problem(log, kind):
    (found,) = [problem for problem in log.problems if problem.kind == kind]
    return found


def test_death_two_steps_before_the_end():
    log = read_chunks([line_forms.nemo2_log(range(48))])
    assert problem(log, "short") == Problem(
        kind="short",
        message="training ended at step 47 of 49: 2 steps are missing at the end",
        fatal=True,
        steps=(48, 49),
    )


@pytest.mark.parametrize(
    ("steps", "last", "max_steps", "first_step"),
    [
        ([0], 0, 1, 0),
        ([0], 49, 1, 0),
        (range(25), 49, 25, 0),
        (range(100), 99, 100, 0),
        ([20], 20, 21, 20),
        (range(20, 50), 49, 50, 20),
    ],
    ids=["load run", "load run of a longer plan", "profile run", "100 steps", "resumed", "resumed for long"],
)
def test_runs_of_other_lengths_are_complete(steps, last, max_steps, first_step):
    log = read_chunks([line_forms.nemo2_log(steps, last=last)], max_steps=max_steps, first_step=first_step)
    assert len(log.steps) == len(steps)
    assert log.problems == ()


def test_the_plan_tells_that_a_log_without_total_is_short():
    text = "".join(map(line_forms.torchtitan, range(1, 11))).encode()
    assert "short" not in kinds(read_chunks([text]))
    assert kinds(read_chunks([text], max_steps=11))["short"]


def test_missing_steps_are_named():
    log = read_chunks([line_forms.nemo2_log(step for step in range(50) if step not in (3, 36, 37))])
    missing = problem(log, "missing_steps")
    assert missing.steps == (3, 36, 37)
    assert not missing.fatal


def test_a_gap_of_billions_is_named_and_not_listed():
    log = read_chunks([line_forms.nemo2_log([0, 1, 2]) + line_forms.nemo2(10**12, last=10**12).encode()])
    assert len(problem(log, "missing_steps").steps) <= 10_000


def test_a_log_that_begins_late_lacks_its_beginning_unless_it_was_resumed():
    late = line_forms.nemo2_log(range(20, 50))
    load = b"Global Checkpoint Load : Rank : 0 : Start time : 17.2s : Time spent in load_checkpoint: 9.7s\n"
    record = b'steptime.resumed {"checkpoint_path": "/c", "global_step": 20, "consumed_samples": 160}\n'
    assert problem(read_chunks([late]), "missing_steps").steps == tuple(range(20))
    assert read_chunks([load + late]).problems == ()
    assert read_chunks([record + late]).problems == ()
    assert read_chunks([record + late]).resumed == {
        "checkpoint_path": "/c",
        "global_step": 20,
        "consumed_samples": 160,
    }


def test_two_steps_with_a_gap_are_no_interval():
    log = read_chunks([line_forms.nemo2_log([0, 5], last=5)])
    assert problem(log, "missing_steps").steps == (1, 2, 3, 4)
    assert kinds(log) == {"missing_steps": False}


def test_steps_outside_the_plan_are_named():
    log = read_chunks([line_forms.nemo2_log(range(18, 22), last=21)], max_steps=21, first_step=20)
    assert problem(log, "unexpected_steps").steps == (18, 19, 21)
    assert kinds(log)["unexpected_steps"] is False


def test_a_loss_that_is_no_number_on_one_rank_only():
    lines = [line_forms.nemo2(49, loss=loss, prefix=f"{rank}: ") for rank, loss in enumerate(("9.1", "nan"))]
    log = read_chunks([line_forms.nemo2_log(range(49)) + "".join(lines).encode()])
    assert problem(log, "nan_loss").steps == (49,)


def test_a_nan_before_a_restart_is_not_reported_of_the_steps_trained_again():
    first = [line_forms.nemo2(step, loss="nan" if step == 20 else "9.1") for step in range(30)]
    again = [line_forms.nemo2(step) for step in range(10, 50)]
    log = read_chunks(["".join([*first, *again]).encode()])
    assert [problem.kind for problem in log.problems if problem.kind == "nan_loss"] == []


@pytest.mark.parametrize("printed", ["nan", "NaN", "inf", "-inf"])
def test_a_loss_that_is_no_number(printed):
    text = line_forms.nemo2_log(range(10), last=11) + line_forms.nemo2(10, last=11, loss=printed).encode()
    log = read_chunks([text + line_forms.nemo2(11, last=11, loss=printed).encode()])
    assert problem(log, "nan_loss").fatal
    assert problem(log, "nan_loss").steps == (10, 11)
    assert log.steps[10].loss is not None
    assert not math.isfinite(log.steps[10].loss)


def test_a_gradient_norm_that_is_no_number():
    text = "".join(line_forms.megatron_bridge(i, grad_norm="nan" if i == 7 else "0.7") for i in range(1, 51))
    log = read_chunks([text.encode()])
    assert kinds(log) == {"nan_grad_norm": True}
    assert problem(log, "nan_grad_norm").steps == (6,)


_STEP_BY_STEP = [(step, rank) for step in range(50) for rank in range(8)]
_RANK_BY_RANK = sorted(_STEP_BY_STEP, key=lambda pair: pair[1])


@pytest.mark.parametrize(
    ("label", "order"),
    [
        ("{rank}: ", _STEP_BY_STEP),
        ("{rank}: ", _RANK_BY_RANK),
        ("[rank{rank}]: ", _RANK_BY_RANK),
        ("[default{rank}]:", _RANK_BY_RANK),
        ("", _STEP_BY_STEP),  # without labels, a rank's block could also be a restart
    ],
)
def test_eight_ranks_count_once(label, order):
    """Each rank has its own clock; the one printed first counts."""
    lines = [
        line_forms.nemo2(step, time=f"2.6{step:02}{rank}", prefix=label.format(rank=rank))
        for step, rank in order
    ]
    log = read_chunks(["".join(lines).encode()])
    assert [step.step_time_s for step in log.steps] == [float(f"2.6{step:02}0") for step in range(50)]
    assert kinds(log) == {"repeated_lines": False}
    assert "8 times" in problem(log, "repeated_lines").message


def test_the_very_same_lines_twice_are_repeats_in_any_order():
    log = read_chunks([line_forms.nemo2_log() + line_forms.nemo2_log()])
    assert kinds(log) == {"repeated_lines": False}


def _attempt(steps, time):
    return "".join(line_forms.nemo2(step, time=time) for step in steps).encode()


def test_a_restart_from_a_checkpoint_trains_steps_again():
    log = read_chunks([_attempt(range(31), "2.1") + _attempt(range(20, 50), "2.2")])
    assert [step.step_time_s for step in log.steps] == [2.1] * 20 + [2.2] * 30
    assert kinds(log) == {"duplicate_steps": False}
    assert problem(log, "duplicate_steps").steps == tuple(range(20, 31))


def test_each_sentence_about_steps():
    by_ranks = [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    lines = {
        "went on before its end": _attempt(range(31), "2.1") + _attempt(range(20, 50), "2.2"),
        "began at its last step": _attempt(range(31), "2.1") + _attempt(range(30, 50), "2.2"),
        "began anew": _attempt(range(31), "2.1") + _attempt(range(50), "2.2"),
        "began anew twice": 2 * _attempt(range(9), "2.1") + _attempt(range(50), "2.2"),
        "repeated": "".join(line_forms.nemo2(step, last=2, prefix=f"{rank}: ") for step, rank in by_ranks),
        "one repeated": "".join(line_forms.nemo2(0, last=0, prefix=f"{rank}: ") for rank in range(3)),
        "gaps": line_forms.nemo2_log(step for step in range(50) if step not in (3, 36, 37)),
        "late": line_forms.nemo2_log(range(20, 50)),
        "short": line_forms.nemo2_log(range(30)),
        "every tenth": line_forms.nemo2_log(range(9, 50, 10)),
        "not finite": "".join(
            line_forms.nemo2(step, loss={7: "nan", 9: "-inf"}.get(step, "5")) for step in range(50)
        ),
        "untimed": "".join(map(line_forms.torchtitan, range(1, 4))),
        "longer and longer": "".join(
            line_forms.nemo2(step, time=f"{2 + step / 9:.3f}") for step in range(50)
        ),
        "two formats": line_forms.nemo2_log() + line_forms.megatron_bridge(3).encode(),
        "nothing": b"loading\n",
    }
    told = []
    for what, text in lines.items():
        log = read_chunks([text if isinstance(text, bytes) else text.encode()], max_steps=None)
        said = [f"  {one.kind}{' (fatal)' * one.fatal}: {one.message}\n" for one in log.problems]
        told += [f"{what}\n", *said]
    assert_kept("logs/steps.txt", "".join(told))


def test_steps_that_a_restart_did_not_reach_again_do_not_count():
    log = read_chunks([_attempt(range(31), "2.1") + _attempt(range(20, 25), "2.2")])
    assert log.steps[-1].global_step == 24
    assert kinds(log)["short"]


def test_a_restart_from_scratch_leaves_only_the_new_attempt():
    log = read_chunks([_attempt(range(31), "2.1") + _attempt(range(50), "2.2")])
    assert {step.step_time_s for step in log.steps} == {2.2}
    assert kinds(log) == {"restart": False}


@pytest.mark.long
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_labelled_ranks_that_restart_may_print_in_any_order(attempts, ranks, order):
    """Each attempt goes back some steps and trains on; within a step any rank may print first."""
    text, left, reached = [], dict[int, float](), -1
    for number, (back, trained) in enumerate(attempts, 1):
        # An attempt that begins with the last step of the one before cannot be told from a repeat.
        first = max(0, reached + 1 - (back if back != 1 else 0))
        left = {step: time for step, time in left.items() if step < first}
        for step in range(first, first + 2 + trained):
            left[step] = number + 0.5
            for rank in order.sample(range(ranks), ranks):
                text.append(line_forms.nemo2(step, time=str(number + 0.5), prefix=f"{rank}: "))
        reached = max(left)
    log = read_chunks(["".join(text).encode()])
    assert {step.global_step: step.step_time_s for step in log.steps} == left


def test_requeued_logs_are_one_run(tmp_path):
    first, second = tmp_path / "log-a.x_123_0.out", tmp_path / "log-a.x_123_1.out"
    first.write_bytes(_attempt(range(31), "2.1") + b"srun: error: n1: task 3: Killed\n")
    second.write_bytes(_attempt(range(31, 50), "2.2"))
    log = read_log([first, second])
    assert len(log.steps) == 50
    assert log.path == str(second)
    assert log.bytes_read == first.stat().st_size + second.stat().st_size
    assert kinds(log) == {"restart": False, "rank_failed": False}
    assert problem(log, "rank_failed").message == (
        "in an earlier attempt: srun: task 3 on n1: Killed (SIGKILL, most often for lack of memory)"
    )


def test_ranks_without_label_may_print_two_steps_apart():
    ranks = [(0, 1), (0, 2), (1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (3, 2)]
    text = "".join(line_forms.nemo2(step, time=f"{rank}.5") for step, rank in ranks)
    log = read_chunks([text.encode()], max_steps=4)
    assert kinds(log) == {"repeated_lines": False}
    assert [step.step_time_s for step in log.steps] == [1.5] * 4


def test_ranks_without_label_that_begin_anew_have_restarted_once():
    before = "".join(line_forms.nemo2(step) for step in range(10))
    anew = "".join(line_forms.nemo2(step, time=f"{rank}.5") for step in range(4) for rank in (1, 2))
    log = read_chunks([(before + anew).encode()], max_steps=4)
    assert sorted(problem.kind for problem in log.problems) == ["repeated_lines", "restart"]
    assert len(log.steps) == 4


def test_ranks_without_label_may_begin_anew_while_one_lags_behind():
    before = [*[(step, rank) for step in range(30) for rank in (1, 2)][:-1], (30, 1), (29, 2)]
    anew = [(step, rank) for step in range(27, 40) for rank in (3, 4)]
    text = "".join(line_forms.nemo2(step, time=f"{rank}.5") for step, rank in (*before, *anew))
    log = read_chunks([text.encode()], max_steps=40)
    assert problem(log, "duplicate_steps").steps == (27, 28, 29, 30)
    assert [step.step_time_s for step in log.steps] == [1.5] * 27 + [3.5] * 13


def test_what_failed_before_a_requeue_is_of_an_earlier_attempt_though_no_step_follows(tmp_path):
    first, second = tmp_path / "log-a.x_123_0.out", tmp_path / "log-a.x_123_1.out"
    first.write_bytes(_attempt(range(31), "2.1") + b"srun: error: n1: task 3: Killed\n")
    second.write_bytes(b"loading modules\n")
    log = read_log([first, second])
    assert kinds(log) == {"rank_failed": False, "short": True}
    assert problem(log, "rank_failed").message == (
        "in an earlier attempt: srun: task 3 on n1: Killed (SIGKILL, most often for lack of memory)"
    )


def test_writers_are_told_apart_by_their_labels():
    labels = {b"3: x": b"3", b"[rank3]: x": b"3", b"[default3]:x": b"3", b"pod-7/2 x": b"pod-7/2", b"x": None}
    assert {line: writer_label(line) for line in labels} == labels


def test_a_single_writer_that_goes_back_by_one_step_has_restarted():
    log = read_chunks([_attempt(range(10), "2.1") + _attempt(range(8, 50), "2.2")])
    assert problem(log, "duplicate_steps").steps == (8, 9)
    assert [step.step_time_s for step in log.steps[7:9]] == [2.1, 2.2]


def test_a_rank_may_print_a_step_behind_a_later_one_where_another_had_it():
    others = "".join(line_forms.nemo2(step, prefix="1: ", time="2.2") for step in (0, 1, 2, 4, 3, 5))
    log = read_chunks([line_forms.nemo2_log(prefix="0: ") + others.encode()])
    assert kinds(log) == {"repeated_lines": False}
    assert log.steps[3].step_time_s == 2.603


def test_a_trainer_that_starts_again_is_a_restart():
    start = b'steptime.start {"schema": 1, "world_size": 2}\n'
    end = b'steptime.result {"state": "completed", "global_step": 49}\n'
    log = read_chunks([start + _attempt(range(10), "2.1") + start + _attempt(range(10, 50), "2.1") + end])
    assert kinds(log) == {"restart": False}
    assert log.ended == {"state": "completed", "global_step": 49}


def test_nodes_are_checked_before_the_start_that_they_are_checked_for():
    def attempt(bus_gb_per_s, steps):
        check = f'steptime.node_check {{"all_reduce": {{"bus_gb_per_s": {bus_gb_per_s}}}}}\n'
        return check.encode() + b'steptime.start {"schema": 1}\n' + _attempt(steps, "2.1")

    end = b'steptime.result {"state": "completed"}\n'
    log = read_chunks([attempt(7, range(10)) + attempt(9, range(10, 50)) + end])
    assert log.node_check == {"all_reduce": {"bus_gb_per_s": 9}}
    assert log.started == {"schema": 1}
    assert kinds(log) == {"restart": False}
    assert read_chunks([line_forms.nemo2_log()]).node_check is None


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (b'steptime.result {"state": "completed"}\n', {}),
        (b'steptime.result {"state": "failed"}\n', {"trainer_state": True}),
        (b'steptime.result {"state": "failed", "error": "no."}\n', {"trainer_failed": True}),
        (b'steptime.result {"state": "failed", "error": 7}\n', {"trainer_state": True}),
        (b'steptime.result {"state": "terminated", "error": "by SIGTERM."}\n', {"trainer_state": True}),
        (b"", {"no_end_record": True}),
        (b'steptime.result {"state": "comple', {"broken_record": False, "no_end_record": True}),
        (b"steptime.result {nonsense}\n", {"broken_record": False, "no_end_record": True}),
        (b'steptime.result {"state": "completed"}glued\n', {}),
    ],
)
def test_the_trainers_own_record_of_its_end(end, expected):
    log = read_chunks([b'0: steptime.start {"world_size": 2}\n' + line_forms.nemo2_log() + end])
    assert log.started == {"world_size": 2}
    assert kinds(log) == expected


def test_the_trainers_sentence_comes_before_what_follows_from_it():
    """SIGTERM is the exception, as the trainer cannot know its reason."""
    torchrun = b"[0]:\n  exitcode  : 2 (pid: 5)\n failed (exitcode: 2) local_rank: 1 (pid: 5)\n"
    out_of_time = (
        b"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-21T20:00:00 DUE TO TIME LIMIT ***\n"
    )
    start = b"steptime.start {}\n" + line_forms.nemo2_log(range(10))
    result = 'steptime.result {{"state": "{}", "error": "the reason."}}\n'
    failed = read_chunks([start + torchrun + result.format("failed").encode()], max_steps=50)
    assert [problem.kind for problem in failed.problems] == ["trainer_failed", "rank_failed", "short"]
    assert failed.problems[0].message == "the reason."
    ended = read_chunks([start + out_of_time + result.format("terminated").encode()], max_steps=50)
    assert [problem.kind for problem in ended.problems] == ["time_limit", "short", "trainer_state"]
    assert ended.problems[2].message == "the trainer recorded its end as 'terminated': the reason."


def test_a_log_that_ends_within_a_number():
    """`2.693` cut to `2.6` is a different number, so the time is not read."""
    whole = line_forms.nemo2_log()
    at = whole.rindex(b"2.649")
    log = read_chunks([whole[: at + 3]])
    assert log.steps[-1].global_step == 49
    assert log.steps[-1].step_time_s is None
    assert kinds(log) == {"truncated_line": False, "no_step_time": False}


def test_every_cut_of_a_line_gives_its_numbers_or_none():
    line = line_forms.nemo2(49).encode()
    whole = read_chunks([line]).steps[0]
    for end in range(len(line)):
        for step in read_chunks([line[:end]]).steps:
            assert all(value in (None, getattr(whole, name)) for name, value in asdict(step).items()), line[
                :end
            ]


def test_empty_and_meaningless_logs(tmp_path):
    empty = tmp_path / "log-empty.out"
    empty.touch()
    assert kinds(read_log(empty)) == {"empty_log": True}
    silent = read_chunks([b"loading\nstep by step\n"])
    assert (silent.format, silent.steps, kinds(silent)) == ("none", (), {"no_steps": True})


def test_binary_garbage_between_the_lines():
    garbage = bytes(range(256)) * 5000
    before = line_forms.nemo2_log(range(25))
    log = read_chunks([before, b"\1" + garbage + b"\n" + line_forms.nemo2_log(range(25, 50))])
    assert len(log.steps) == 50
    assert kinds(log) == {"binary_data": False}
    assert log.problems[0].message == f"the log holds binary data, first at byte {len(before) + 1:,}"


def test_steps_of_another_format_do_not_mix_in():
    text = line_forms.nemo2_log() + line_forms.torchtitan(70).encode()
    log = read_chunks([text])
    assert kinds(log) == {"mixed_formats": False}
    assert problem(log, "mixed_formats").message.startswith("1 line of the format torchtitan beside")
    assert len(log.steps) == 50


def zstd(data):
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd)])
def test_compressed_logs(tmp_path, suffix, pack):
    noise = b"".join(map(line_forms.nccl_trace, range(3000)))
    text = line_forms.nemo2_log(range(40)) + noise + line_forms.nemo2_log(range(40, 50))
    log = tmp_path / f"log-x.out{suffix}"
    packed = pack(text)
    log.write_bytes(packed)
    assert find_logs(tmp_path) == [log]
    assert read_log(log).problems == ()
    log.write_bytes(pack(text[:5000]) + pack(text[5000:]))
    assert read_log(log).problems == (), "of several archives put together"
    log.write_bytes(packed[:-100])
    cut = read_log(log)
    assert kinds(cut)["broken_archive"] is False
    assert len(cut.steps) >= 40, "what the archive holds before its cut is read"
    log.write_bytes(packed[:50] + bytes(100) + packed[150:])
    assert "broken_archive" in kinds(read_log(log))


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_a_few_packed_bytes_are_not_unpacked_at_once(tmp_path, suffix, pack):
    """Repeated lines shrink to a thousandth or less; they are unpacked in small pieces to save memory."""
    log = tmp_path / f"log-x.out{suffix}"
    repeated = bytes(48 << 20)
    log.write_bytes(pack(repeated))
    pieces = [len(piece) for piece in unpack_log(log)]
    assert sum(pieces) == len(repeated)
    assert max(pieces) <= 4 << 20


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.out' cannot be read: No such file"):
        read_log(tmp_path / "nothing.out")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_log(tmp_path)
    broken = tmp_path / "log-x.out.gz"
    broken.write_bytes(b"no archive")
    assert "broken_archive" in kinds(read_log(broken))
    with pytest.raises(UserError, match="no log to read"):
        read_log([])


PROFILED = [
    "Capture range started in the application.",
    "[NeMo I 2026-02-03 04:05:06 nsys:75] Nsys profiling setup with start_step: 45,and end_step: 50",
    "[NeMo I 2026-02-03 04:05:06 nsys:9] ====== Start nsys profiling ======",
    "[rank0]:2026-02-03 04:05:06,125 - root - INFO - Profiling active. Traces will be saved at ./outputs/x",
    "STAGE:2024-08-21 10:15:12 1863929:1863929 ActivityProfilerController.cpp:314] Completed Stage: Warm Up",
    "STAGE:2024-08-21 10:19:52 7:7 ActivityProfilerController.cpp:324] Completed Stage: Post Processing",
    "Generated:\n    /lustre/x/profile_123_n1_0.nsys-rep",
    "Generated: /lustre/x/profile_123_n1_0.nsys-rep",
]
LOADED = [
    "successfully loaded checkpoint from /x/saved [ t 1/2, p 1/4 ] at iteration 10",
    "Restored all states from the checkpoint at /x/made-up--step=9-last/weights",
    "Global Checkpoint Load : Rank : 0 : Start time : 17.2s : Time spent in load_checkpoint: 9.7s",
]
SAVED = ["Global Checkpoint Save : Rank: 0 : Iteration: 19 : Start time: 17.2s : Save duration: 2.5s"]
TRACED = [line_forms.nccl_trace(7).decode().rstrip()]


@pytest.mark.parametrize(
    ("before", "mode"),
    [
        *((line, "profile") for line in PROFILED),
        *((line, "nccl_trace") for line in TRACED),
        *((line, "checkpoint_load") for line in LOADED),
        *((line, "checkpoint_save") for line in SAVED),
        (f"{LOADED[0]}\n{SAVED[0]}", "checkpoint_load"),
        (f"{SAVED[0]}\n{TRACED[0]}", "nccl_trace"),
        (f"{TRACED[0]}\n{PROFILED[0]}", "profile"),
        ("load-checkpoint ................................: 1250.50", "performance"),
        ("node:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>", "performance"),
        ("", "performance"),
    ],
)
def test_a_log_shows_its_kind(before, mode):
    log = line_forms.read_chunks([f"{before}\n".encode(), line_forms.nemo2_log(range(5))])
    assert log.mode == mode


def test_a_log_without_steps_shows_no_kind_but_what_is_printed():
    assert line_forms.read_chunks([b"setting up\n"]).mode is None
    assert line_forms.read_chunks([LOADED[0].encode() + b"\n"]).mode == "checkpoint_load"


def test_a_load_after_a_crash_is_none_of_a_loading_run():
    crashed = line_forms.nemo2_log(range(20)), b"steptime.start {}\n", f"{LOADED[2]}\n".encode()
    log = line_forms.read_chunks([b"steptime.start {}\n", *crashed, line_forms.nemo2_log(range(10, 50))])
    assert (log.mode, len(log.steps)) == ("performance", 50)


def test_of_an_earlier_attempt_the_check_of_its_nodes_alone_is_kept():
    records = (
        b'steptime.node_check {"nodes": []}\nsteptime.start {"number": 1}\n'
        b'steptime.resumed {"global_step": 7}\n'
        b'steptime.result {"state": "failed", "error": "no."}\n'
    )
    log = read_chunks([records + b'steptime.start {"number": 2}\n' + line_forms.nemo2_log()])
    assert (log.node_check, log.started) == ({"nodes": []}, {"number": 2})
    assert (log.resumed, log.ended) == (None, None)
    assert kinds(log) == {"no_end_record": True}


@pytest.mark.parametrize(
    ("old", "new", "read"),
    [
        ("nan iterations:   0", "nan iterations:   1", {"nan_loss": True, "short": True}),
        ("/     300 |", "/     200 |", {}),
    ],
)
def test_a_line_that_differs_from_those_before_in_more_than_numbers_of_a_step(old, new, read):
    """After many equal lines their shape is known: a different last step, and text, still count."""
    log = "".join(line_forms.megatron_bridge(number, total=300) for number in range(1, 200))
    last = line_forms.megatron_bridge(200, total=300)
    assert old in last
    assert kinds(read_chunks([log.encode(), last.replace(old, new).encode()])) == read


def test_what_a_log_itself_lacks_is_no_cause_of_an_end():
    log = read_chunks([line_forms.nemo2_log(range(20)) + b"steptime.start {\n"], max_steps=50)
    assert kinds(log) == {"short": True, "broken_record": False}


@pytest.mark.parametrize(
    "changed",
    [
        ("12.82", "nan"),
        ("3: Training epoch 0, iteration 7/", "1: Training epoch 0, iteration 7/"),
        ("3: Training epoch 0, iteration 7/", "Training epoch 0, iteration 7/"),
        ("3: Training epoch 0, iteration 7/", "3: Training epoch 0, iteration 8/"),
        ("3: Training epoch 0, iteration 7/49", "3: Training epoch 0, iteration 7/51"),
        ("train_step_timing in s: 7.3", "train_step_timing in s: 7,3"),
        ("train_step_timing in s: 7.3", "Traceback (most recent call last) train_step_timing in s: 7.3"),
    ],
)
def test_lines_of_ranks_are_compared_as_bytes_only_if_nothing_depends_on_them(
    changed,
):
    """Given line by line, each line is parsed by itself."""
    lines = [
        line_forms.nemo2(step, time=f"{step}.{rank}", loss=f"12.8{rank - 1}", prefix=f"{rank}: ")
        for attempt in (range(10), range(5, 50))
        for step in attempt
        for rank in range(4)
    ]
    for text in ("".join(lines), "".join(lines).replace(*changed)):
        by_line = read_chunks([line.encode() for line in text.splitlines(keepends=True)])
        assert read_chunks([text.encode()]).model_dump() == by_line.model_dump()
