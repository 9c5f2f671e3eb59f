"""A program says how it prints a step: lines as the sources of public programs write them."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from called import refusal, steptime

from steptime.logs.reader import read_log
from steptime.recipes.models import OwnProgram
from steptime.recipes.step_lines import parse_step_line

NANOGPT = "iter {step}: loss {loss}, time {ms}ms, mfu {...}%"


@pytest.mark.parametrize(
    ("step_line", "line", "read"),
    [
        pytest.param(  # karpathy/nanoGPT, train.py
            NANOGPT,
            "iter 3: loss 4.1852, time 123.45ms, mfu -100.00%",
            (3, 0.12345, 4.1852, None, None, None),
            id="nanoGPT",
        ),
        pytest.param(  # karpathy/nanochat, scripts/base_train.py
            "step {step}/{...} | loss: {loss} | {...} | dt: {ms}ms | tok/sec: {...}",
            "step 00012/21400 (0.06%) | loss: 9.012345 | lrm: 1.00 | dt: 1234.56ms | tok/sec: 424,242",
            (12, 1.23456, 9.012345, None, None, None),
            id="nanochat",
        ),
        pytest.param(  # AI-Hypercomputer/maxtext, metric_logger.py
            "completed step: {step}, seconds: {s}, TFLOP/s/device: {tflops_per_gpu}, "
            "Tokens/s/device: {tokens_per_s_per_gpu}, total_weights: {...}, loss: {loss}",
            "[rank-0/1][INFO]  completed step: 7, seconds: 6.051, TFLOP/s/device: 451.236, "
            "Tokens/s/device: 8123.462, total_weights: 393216, loss: 6.765",
            (7, 6.051, 6.765, 451.236, 8123.462, None),
            id="MaxText",
        ),
        pytest.param(  # deepspeedai/DeepSpeed, runtime/pipe/engine.py
            "steps: {step_from_1} loss: {loss} iter time (s): {s} samples/sec:",
            "steps: 10 loss: 8.1234 iter time (s): 0.345 samples/sec: 46.377",
            (9, 0.345, 8.1234, None, None, None),
            id="DeepSpeed",
        ),
        pytest.param(  # huggingface/nanotron, logging/base.py
            "iteration: {step_from_1} / {...} | elapsed_time_per_iteration_ms: {ms} | {...} | "
            "tokens_per_sec_per_gpu: {tokens_per_s_per_gpu} | {...} lm_loss: {loss} | {...} "
            "model_tflops_per_gpu: {tflops_per_gpu}",
            "[INFO|DP=0|PP=0|TP=0|ip-26-0-161]: iteration: 5 / 15 | consumed_tokens: 6.55M | "
            "elapsed_time_per_iteration_ms: 1.46K | tokens_per_sec: 900K | tokens_per_sec_per_gpu: 112K | "
            "global_batch_size: 1.02K | lm_loss: 10.6 | lr: 0.0001 | model_tflops_per_gpu: 40.1 | ",
            (4, 1.46, 10.6, 40.1, 112_000, None),
            id="nanotron",
        ),
        pytest.param(
            "{{'step': {step_from_1}, 'sec': {s}, 'memory': {memory_gib}, 'tps': {tokens_per_s_per_gpu}}}",
            "3: {'step':  1, 'sec': 1.5, 'memory': 71.25, 'tps': 12,345.6}",
            (0, 1.5, None, None, 12345.6, int(71.25 * 2**30)),
            id="printed braces, a rank's prefix, padding and thousands",
        ),
    ],
)
def test_steps_are_read_as_the_form_says(tmp_path, step_line, line, read):
    (tmp_path / "log.out").write_text(f"a line before\n{line}\nloss 3, and no step\n")

    log = read_log(tmp_path / "log.out", step_line=step_line)

    (step,) = log.steps
    numbers = (step.global_step, step.step_time_s, step.loss)
    rates = (step.tflops_per_gpu, step.tokens_per_s_per_gpu, step.peak_memory_bytes)
    assert numbers + rates == read
    assert log.format == "step_line"


@pytest.mark.parametrize(
    ("word", "right", "wrong"),
    [
        (
            "s",
            ["1.5", "1.5s", "1.5 s", "1.5 sec", "1.5 | h", "1.5 minibatch 3", "1.5 my"],
            ["1.5ms", "1.5 msec", "1.5 milliseconds", "1.5 us", "1.5 min", "1.5m", "1.5 hours"],
        ),
        (
            "ms",
            ["1500", "1500ms", "1500 ms", "1500 milliseconds", "1.5K", "1500 samples"],
            ["1,500", "1.5s", "1.5 sec", "1.5 seconds", "1500 us", "0.025 minutes"],
        ),
    ],
)
def test_a_time_in_another_unit_is_none(tmp_path, word, right, wrong):
    log = tmp_path / "log.out"
    for printed in right + wrong:
        log.write_text(f"iter 3 time {printed}\n")
        times = [step.step_time_s for step in read_log(log, step_line=f"iter {{step}} time {{{word}}}").steps]
        assert times == ([1.5] if printed in right else []), printed


@pytest.mark.parametrize(
    ("printed", "gib"), [("2", 2), ("2G", 2), ("2 GiB", 2), ("2MiB", None), ("2 M", None)]
)
def test_memory_in_another_unit_is_none(tmp_path, printed, gib):
    (tmp_path / "log.out").write_text(f"iter 3 time 1 s memory {printed}\n")
    log = read_log(tmp_path / "log.out", step_line="iter {step} time {s} s memory {memory_gib}")
    assert [step.peak_memory_bytes for step in log.steps] == ([] if gib is None else [gib * 2**30])


def test_the_documented_callback_prints_the_documented_form(tmp_path, capsys):
    """Called as Hugging Face's Trainer does; `transformers` is not in this environment."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "logs.md").read_text()
    [(form, callback)] = re.findall(r"callback does, for\s+`(.+?)`:\s+```python\n(.+?)```", page, re.DOTALL)
    clock = iter([10.0, 12.5, 20.0, 21.0, 30.0, 30.5])
    names = {
        "transformers": SimpleNamespace(TrainerCallback=object),
        "time": SimpleNamespace(perf_counter=lambda: next(clock)),
    }
    exec(callback, names)  # noqa: S102 - our own page
    times = names["StepTimes"]()
    for step, logs in ((1, {"loss": 3.5}), (2, {"loss": 2.5}), (3, {"train_runtime": 7.0})):
        times.on_step_begin(None, None, None)
        times.on_step_end(None, None, None)
        for is_first in (True, False):  # one rank prints
            state = SimpleNamespace(is_world_process_zero=is_first, global_step=step)
            times.on_log(None, state, None, logs=logs)
    (tmp_path / "log.out").write_text(printed := capsys.readouterr().out)
    assert printed.count("\n") == 2

    steps = read_log(tmp_path / "log.out", step_line=form).steps
    assert [(step.global_step, step.loss, step.step_time_s) for step in steps] == [
        (0, 3.5, 2.5),
        (1, 2.5, 1.0),
    ]


def test_ranks_restarts_and_failures_are_seen_as_in_any_format(tmp_path):
    first = [
        f"{rank}: iter {step}: loss 4.0, time {100 + step}.5ms, mfu 1%\n"
        for step in range(6)
        for rank in (0, 1)
    ]
    again = [
        f"{rank}: iter {step}: loss nan, time 90.0ms, mfu 1%\n" for step in range(4, 8) for rank in (0, 1)
    ]
    (tmp_path / "log.out").write_text(
        "".join([*first, *again, "1: torch.OutOfMemoryError: CUDA out of memory.\n"])
    )

    log = read_log(tmp_path / "log.out", step_line=NANOGPT, max_steps=10)

    assert [step.step_time_s for step in log.steps] == [
        0.1005,
        0.1015,
        0.1025,
        0.1035,
        0.09,
        0.09,
        0.09,
        0.09,
    ]
    assert {"nan_loss", "cuda_out_of_memory", "short"} <= {problem.kind for problem in log.problems}


def test_a_log_of_another_form_says_which_lines_it_has(tmp_path):
    log = tmp_path / "nanogpt.log"
    log.write_text("iter 0: loss 4.1852, time 123.45ms\niter 1: loss 4.0, time 120.45ms\n")

    (unknown,) = read_log(log).problems
    (wrong,) = read_log(log, step_line="step {step} {ms} ms").problems

    assert unknown.kind == wrong.kind == "unknown_format"
    assert "such as 'iter 0: loss 4.1852, time 123.45ms': say how they look, as in" in unknown.message
    assert "is of the form 'step {step} {ms} ms', but it has lines such as 'iter 0" in wrong.message


def test_parse_takes_the_form_as_an_option(tmp_path, capsys):
    for name in ("train.log", "notes.txt"):
        (tmp_path / name).write_text(
            "iter 0: loss 4.1, time 123.45ms, mfu 1%\n" if name == "train.log" else "iter\n"
        )

    assert (
        steptime("parse", str(tmp_path), "--step-line", NANOGPT, "--window", "0:0", "--format", "json") == 0
    )
    (row,) = json.loads(capsys.readouterr().out)["logs"]
    assert (row["format"], row["step_time_mean_s"]) == ("step_line", 0.12345)

    why = refusal(capsys, "parse", str(tmp_path), "--step-line", "iter {step}: {time}")
    assert "--step-line has {time}, which is none of its words: {step}, {step_from_1}, {s}, {ms}," in why


@pytest.mark.parametrize(
    ("step_line", "why"),
    [
        ("iter {step} {ms", "has a brace without its other one"),
        ("iter {step}: {ms} } ms", "has a brace without its other one"),
        ("iter {number}: {ms} ms", "has {number}, which is none of its words"),
        ("iter {step} of {step}: {ms} ms", "has {step} twice"),
        ("iter {step}{ms} ms", "has nothing between {ms} and the word before it"),
        ("iter {ms} ms", "needs one of {step} and {step_from_1}"),
        ("iter {step} {step_from_1}: {ms}", "needs one of {step} and {step_from_1}"),
        ("iter {step}: loss {loss}", "needs one of {s} and {ms}"),
        ("iter {step}: {ms} ms, {s} s", "needs one of {s} and {ms}"),
        ("{step}: {s} s", "needs a fixed text of 3 letters"),
        ("", "needs one of {step}"),
        ("iter {step}\n{ms}", "has to be one line"),
    ],
)
def test_forms_that_cannot_be_read_are_refused_in_a_workload(step_line, why):
    with pytest.raises(ValueError, match="^" + re.escape(why)):
        parse_step_line(step_line)
    with pytest.raises(ValueError, match=re.escape(why)):
        OwnProgram(kind="command", command=("train",), step_line=step_line)
