"""How a training ended: the rule of docs/reference/logs.md, on the logs of each framework."""

import math
from dataclasses import asdict

import pytest
from logs import line_forms
from logs.line_forms import read_chunks

from steptime.measure.log_rows import decide_state
from steptime.recipes.step_lines import parse_step_line

NODE_FAILURE = (
    "slurmstepd: error: *** STEP 2879.0 ON node40 CANCELLED AT 2026-05-12T10:30:00 DUE TO NODE FAILURE, "
    "SEE SLURMCTLD LOG FOR DETAILS ***\n"
)
WATCHDOG = (
    "[rank0]:[E521 10:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for "
    "1800090 milliseconds before timing out.\n"
)
OOM_KILL = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=463531.extern. "
    "Some of the step tasks have been OOM Killed.\n"
)
SIGNS = [NODE_FAILURE, WATCHDOG, OOM_KILL, "srun: error: Node failure on gpu-7\n", "Segmentation fault\n"]
LIGHTNING = "`Trainer.fit` stopped: `max_steps={}` reached.\n"
MEGATRON = "[after training is done] datetime: 2026-05-12 10:10:01 \n"
TITAN = "[rank0]:[titan] 2026-05-18 16:05:00,338 - root - INFO - Training completed\n"


def read(*lines, max_steps=None):
    return read_chunks(["".join(lines).encode()], max_steps=max_steps)


def end(log):
    """Return the state of a run whose window is complete."""
    return decide_state([problem for problem in log.problems if problem.fatal], lacks_numbers=False)


def kinds(log):
    return {problem.kind for problem in log.problems}


def nemo1(done, total="15", *, step=None):
    return (
        f"\rEpoch 0: :  47%|####7     | {done}{total} [06:19<07:13, reduced_train_loss=11.50, "
        f"global_step={step or f'{done - 1}.000'}, consumed_samples=12288.0, train_step_timing in s=49.50]"
    )


def nemo2(steps, last):
    return "".join(line_forms.nemo2(step, last=last) for step in steps)


def megatron(iterations, total):
    return "".join(line_forms.megatron_bridge(iteration, total=total) for iteration in iterations)


def titan(steps, loss="3.2"):
    return "".join(line_forms.torchtitan(step, loss=loss) for step in steps)


def titan_setup(steps):
    return (
        "[titan] 2026-05-18 16:04:40,000 - root - INFO - Trainer is initialized with local batch size 2, "
        "global batch size 16, gradient accumulation steps 1, sequence length 8192, "
        f"total steps {steps} (warmup 2)\n"
    )


RANK_0_OF_BRIDGE = "".join(
    f"Step Time : {time}s GPU utilization: 1174.3MODEL_TFLOP/s/GPU\n" for time in (6, 2.2)
)

UNKNOWN = {
    "bar without a total": "".join(nemo1(done, "/?") for done in range(1, 8)),
    "bar that only counts": "".join(nemo1(done, "it") for done in range(1, 8)),
    "torchtitan": titan(range(1, 6)),
    "rank 0 of Megatron-Bridge": RANK_0_OF_BRIDGE,
    "NeMo 2 without a total": "Training epoch 0, iteration 3 | train_step_timing in s: 1.5\n",
}
SHORT = {
    "bar at 7 of 15": "".join(nemo1(done, "/15") for done in range(1, 8)),
    "bar at 7 of 15 whose step lags": nemo1(7, "/15", step="5.000"),
    "bar at 7 of 15 whose step is rounded": nemo1(7, "/15", step="2e+3"),
    "NeMo 2": nemo2(range(7), 14),
    "NeMo 2 in its second epoch": "Training epoch 1, iteration 3/9 | global_step: 13 | lr: 1.0\n",
    "Megatron": megatron(range(1, 8), 15),
    "torchtitan": titan_setup(15) + titan(range(1, 8)),
}
COMPLETE = {
    "bar at 15 of 15": "".join(nemo1(done, "/15") for done in range(1, 16)),
    "bar at 15 of 15 whose step lags": nemo1(15, "/15", step="13.000"),
    "bar without a total": nemo1(7, "/?") + "\n" + LIGHTNING.format(7),
    "bar that was drawn last at 10 of 15": nemo1(10, "/15") + "\n" + LIGHTNING.format(15),
    "NeMo 2": nemo2(range(15), 14) + LIGHTNING.format(15),
    "NeMo 2 with the lines of stdout behind those of stderr": LIGHTNING.format(15) + nemo2(range(15), 14),
    "NeMo 2 that ends amid its second epoch": SHORT["NeMo 2 in its second epoch"] + LIGHTNING.format(14),
    "NeMo 2 by its epochs": nemo2(range(15), 14) + "`Trainer.fit` stopped: `max_epochs=1` reached.\n",
    "Megatron": megatron(range(1, 16), 15) + MEGATRON,
    "Megatron without closing words": megatron(range(1, 16), 15),
    "Megatron with a line every tenth step": megatron(range(10, 251, 10), 255) + MEGATRON,
    "rank 0 of Megatron-Bridge": RANK_0_OF_BRIDGE + MEGATRON,
    "torchtitan": titan(range(1, 6)) + TITAN,
    "torchtitan without closing words": titan_setup(5) + titan(range(1, 6)),
}


@pytest.mark.parametrize("log", UNKNOWN.values(), ids=UNKNOWN)
def test_a_log_with_neither_a_last_step_nor_closing_words_does_not_show_its_end(log):
    assert end(read(log)) == "unknown"
    assert "end_unknown" in kinds(read(log))


@pytest.mark.parametrize("log", SHORT.values(), ids=SHORT)
def test_a_log_that_ends_before_its_last_step_is_incomplete(log):
    assert end(read(log)) == "incomplete"


@pytest.mark.parametrize("log", COMPLETE.values(), ids=COMPLETE)
def test_a_log_with_its_last_step_or_closing_words_is_complete(log):
    assert end(read(log)) == "complete"


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("log", [*UNKNOWN.values(), *SHORT.values()], ids=[*UNKNOWN, *SHORT])
def test_a_sign_of_failure_decides_unless_training_is_complete(log, sign):
    failed = read(log, "\n", sign)
    assert end(failed) == "failed"
    assert failed.problems[0].kind not in ("short", "end_unknown")


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("log", COMPLETE.values(), ids=COMPLETE)
def test_a_sign_of_failure_after_the_end_of_training_is_a_remark(log, sign):
    finished = read(log, "\n", sign)
    assert end(finished) == "complete"
    assert any(not problem.fatal and "log lacks" not in problem.message for problem in finished.problems)


def test_what_the_bar_prints_is_named_beside_the_step():
    (short,) = [
        problem for problem in read(SHORT["bar at 7 of 15 whose step lags"]).problems if problem.fatal
    ]
    assert (
        short.message == "training ended at step 5 of 13 (printed as 7 of 15): 8 steps are missing at the end"
    )


def test_closing_words_do_not_make_up_for_planned_steps():
    """The training ended as it was told to, but after fewer steps than planned."""
    asked_for_less = read(nemo2(range(10), 9) + LIGHTNING.format(10), max_steps=50)
    assert end(asked_for_less) == "incomplete"
    assert "training ended by itself at step 9 of 49" in asked_for_less.problems[0].message
    assert end(read(megatron(range(1, 11), 10) + MEGATRON, max_steps=50)) == "incomplete"
    assert end(read(nemo2(range(50), 49) + LIGHTNING.format(50), max_steps=50)) == "complete"


def test_closing_words_are_of_their_own_attempt():
    """A second training in the same log is killed; the closing words are the first one's."""
    assert end(read(titan(range(1, 6)), TITAN, titan(range(1, 4), loss="9.1"))) == "unknown"
    assert end(read(nemo2(range(10), 9), LIGHTNING.format(10), nemo2(range(10, 14), 19))) == "incomplete"
    assert end(read(nemo2(range(10), 9), LIGHTNING.format(10), nemo2(range(10, 11), 19))) == "incomplete"
    assert end(read(titan(range(1, 6)), TITAN, titan(range(6, 9)))) == "unknown"
    assert end(read(titan(range(1, 6)), TITAN, titan(range(6, 7)))) == "unknown"
    again = "".join(line_forms.nemo2(step, last=9, time="3.1") for step in range(5))
    assert end(read(nemo2(range(10), 9), LIGHTNING.format(10), again)) == "incomplete"


@pytest.mark.parametrize(
    "words", [LIGHTNING.format(10), MEGATRON, TITAN, "`Trainer.fit` stopped: No training batches.\n"]
)
def test_nothing_was_left_to_train(words):
    log = read("successfully loaded checkpoint from /x/saved [ t 1/2, p 1/4 ] at iteration 10\n", words)
    assert (end(log), kinds(log)) == ("incomplete", {"nothing_to_train"})
    assert "nothing was left to train" in log.problems[0].message


@pytest.mark.parametrize("words", [LIGHTNING.format(10), MEGATRON, TITAN])
def test_closing_words_without_a_step_do_not_mean_that_nothing_was_trained(words):
    log = read(words)
    assert (end(log), kinds(log)) == ("unknown", {"unknown_format"})
    assert "though training ended by itself: if it has trained, have it print" in log.problems[0].message


@pytest.mark.parametrize(
    "bar",
    [
        "Epoch 0: 100%|██████████| 12/12 [00:08<00:00,  1.34it/s, train_loss=8.580]",  # Lightning by tqdm
        "Epoch 0/-2 ━━━━━━━━━━━━━━━━━━ 12/12 0:00:14 • 0:00:00 1.05it/s train_loss: 8.610",  # and by rich
        "100%|██████████| 12/12 [00:18<00:00,  1.54s/it, loss=8.58]",
    ],
)
@pytest.mark.parametrize("words", [LIGHTNING.format(12), ""])
def test_a_progress_bar_without_step_times_is_named(bar, words):
    log = read(words + bar + "\n")
    assert (end(log), kinds(log)) == ("unknown", {"unknown_format"})
    assert "bytes, but a progress bar, which has no time of a step" in log.problems[0].message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "Monitored metric val_loss did not improve in the last 3 records. Best score: 5.010. "
            "Signaling Trainer to stop.\n",
            "Monitored metric val_loss did not improve in the last 3 records",
        ),
        (
            "Stopping threshold reached: reduced_train_loss = 6.1 <= 6.2. Signaling Trainer to stop.\n",
            "Stopping threshold reached: reduced_train_loss = 6.1 <= 6.2",
        ),
        ("Enough was seen. Signaling Trainer to stop.\n", "as a callback asked it to"),
    ],
)
def test_early_stopping_is_named(line, says):
    log = read(nemo2(range(7), 14), line)
    assert end(log) == "incomplete"
    assert log.problems[0].kind == "stopped_early"
    assert says in log.problems[0].message


def test_lightnings_timer_is_a_time_limit():
    log = read(
        nemo2(range(7), 14), "Time limit reached. Elapsed time is 3:55:00. Signaling Trainer to stop.\n"
    )
    assert (end(log), log.problems[0].kind) == ("failed", "time_limit")
    assert log.problems[0].message == "training ended at its own time limit, after 3:55:00"


@pytest.mark.parametrize(
    ("line", "nodes", "says"),
    [
        (NODE_FAILURE, "node40", "Slurm ended the job on node40 at 2026-05-12T10:30:00"),
        (NODE_FAILURE.replace("STEP 2879.0", "JOB 2879"), "node40", "on node40"),
        (
            "slurmd[tux3]: *** JOB 7 CANCELLED AT 2013-05-12T10:30:00 DUE TO NODE FAILURE ***\n",
            "",
            "at 2013-05-12",
        ),
        ("srun: error: Node failure on gpu-7\n", "gpu-7", "gpu-7"),
        ("salloc: error: Node failure on h[001-003,7],x2\n", "h[001-003,7],x2", "h[001-003,7],x2"),
        (
            "2: srun: error: Node failure on pool0-0007.cluster.local\n",
            "pool0-0007.cluster.local",
            "pool0-0007",
        ),
    ],
)
def test_the_node_that_failed_is_named(line, nodes, says):
    (failure,) = [one for one in read(nemo2(range(7), 14), line).problems if one.kind == "node_failure"]
    assert (failure.nodes, failure.fatal) == (nodes, True)
    assert says in failure.message


def test_why_slurm_ended_a_job_is_quoted_whole():
    """The reason may contain a comma or small letters."""
    line = "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-05-12T10:30:00 DUE {} ***\n"
    for why in ("TO JOB REQUEUE", "to SIGNAL Terminated", "TO TASK FAILURE", "TO SOMETHING NEW, SEE THE LOG"):
        log = read(nemo2(range(7), 14), line.format(why))
        assert log.problems[0].message == f"Slurm ended the job at 2026-05-12T10:30:00: {why[3:]}"
        assert end(log) == "failed"


def test_a_save_of_torchtitan_amid_the_steps_is_a_save_and_one_at_the_end_is_not():
    """Torchtitan saves after the last step of every training with checkpoints."""
    said = "[rank0]:[titan] 2026-06-01 13:34:29,215 - root - INFO - {}\n"
    begun = said.format("Saving the checkpoint (or staging if async is enabled).")
    for finished in (
        "Finished saving the checkpoint (or staging if async is enabled)in 30.20 seconds.",
        "Finished saving the checkpoint (or staging if async is enabled) in 30.20 seconds.",
        "Last step checkpoint completed in 30.20s",
    ):
        save = begun + said.format(finished)
        amid = read(titan_setup(8), titan(range(1, 6)), save, titan(range(6, 9)), TITAN)
        assert (amid.mode, end(amid)) == ("checkpoint_save", "complete")
        assert [(each.duration_s, each.blocked_s) for each in amid.checkpoints] == [(30.2, 30.2)]
        last = read(titan_setup(8), titan(range(1, 9)), save, TITAN)
        assert (last.mode, end(last)) == ("performance", "complete")


@pytest.mark.parametrize("loading", ["from ./outputs/checkpoint/step-25.", "at step 25."])
def test_torchtitan_resumes_where_its_checkpoint_ends(loading):
    said = "[rank0]:[titan] 2026-05-21 10:58:16,211 - root - INFO - {}\n"
    load = said.format(f"Loading the checkpoint {loading}")
    load += said.format("Finished loading the checkpoint in 0.70 seconds.")
    log = read(titan_setup(30), load, titan(range(26, 31)), TITAN)
    assert (log.problems[1:], kinds(log)) == ((), {"no_step_time"})
    assert [(each.iteration, each.duration_s) for each in log.checkpoints] == [(25, 0.7)]


# Numbers that are no benchmark


def timed(times_ms):
    total = len(times_ms)
    lines = (
        line_forms.megatron_bridge(step, total=total, elapsed_ms=f"{time_ms:.1f}")
        for step, time_ms in enumerate(times_ms, 1)
    )
    return read(*lines)


def test_a_step_time_that_grows_with_each_step_is_remarked():
    log = timed([11000.0 + 435 * step for step in range(50)])
    assert (end(log), kinds(log)) == ("complete", {"step_time_trend"})
    assert "grows from 12.3 s to 32.31 s over steps 3 to 49" in log.problems[0].message
    assert "falls" in timed([32000.0 - 435 * step for step in range(50)]).problems[0].message


def test_a_step_that_took_far_longer_than_the_others_is_remarked():
    log = timed([9000.0] * 20 + [70000.0] + [9000.0] * 20)
    assert "global step 20 took up to 70 s, and others 9 s" in log.problems[0].message


@pytest.mark.parametrize(
    "times_ms",
    [
        [60000.0, 20000.0, 9000.0] + [9000.0] * 30,
        [9000.0 + 300 * (step % 7) for step in range(50)],
        [9000.0] * 20 + [70000.0, math.inf] + [9000.0] * 20,
        [9000.0 + 5 * step for step in range(50)],
        [9000.0, 90000.0] * 3,
    ],
    ids=["warm-up", "spread", "an infinite one", "small trend", "few steps"],
)
def test_usual_step_times_are_not_remarked(times_ms):
    assert kinds(timed(times_ms)) == set()


def test_a_field_is_known_by_its_unit():
    """Forks of Megatron-LM rename fields, and print the mean beside the number."""
    line = line_forms.megatron_bridge(1, total=1).splitlines()[1] + "\n"
    renamed = line.replace("learning rate:", "compute per GPU (TFLOP/s/GPU): 579.4/573.6 | learning rate:")
    assert read(renamed).steps[0].tflops_per_gpu == 579.4
    both = renamed.replace("learning rate:", "throughput per GPU (TFLOP/s/GPU): 449.6 | learning rate:")
    assert read(both).steps[0].tflops_per_gpu == 449.6


# Logs that have no step


@pytest.mark.parametrize(
    "line",
    [
        "2026-07-11 21:03:15 | INFO | root | step {} | epoch 0 | loss 12.4 | tps 6924",
        "(TaskRunner pid=4411) step:{} - actor/pg_loss:0.021 - actor/grad_norm:0.12 - timing_s/step:41.2",
        "(head, rank=0, pid=4503) {{'loss': 0.6{}, 'grad_norm': 0.4, 'learning_rate': 0.0006, 'epoch': 0.1}}",
        "steps: {} loss: 8.4100 iter time (s): 1.520 samples/sec: 21.333",
    ],
    ids=["AutoModel", "verl", "Hugging Face", "DeepSpeed"],
)
def test_a_framework_that_is_not_read_is_said_to_be_that(line):
    log = read(*(f"{line.format(step)}\n" for step in range(9)))
    assert end(log) == "unknown"
    assert "is of a format that is read (nemo2, tqdm, megatron_bridge, torchtitan)" in log.problems[0].message
    assert line.format(0)[:60] in log.problems[0].message
    suggested = log.problems[0].message.partition("as in '")[2].partition("'")[0]
    assert parse_step_line(suggested).first == 0


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_wrapped_lines_are_said_to_be_that_or_read_right(newline):
    lines = [line_forms.megatron_bridge(step, total=3).splitlines()[1] for step in (1, 2, 3)]
    whole = read("\n".join(lines)).steps
    for width in range(60, 240):
        wrapped = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
        log = read(newline.join(wrapped))
        if log.steps:
            read_right = zip(map(asdict, log.steps), map(asdict, whole), strict=True)
            assert all(
                value in (None, right[name]) for step, right in read_right for name, value in step.items()
            )
        else:
            assert end(log) == "unknown"
            assert "wrapped" in log.problems[0].message
