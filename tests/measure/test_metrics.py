"""Rates compared with the documents' tables and examples, and measurements over the window of a log."""

import math
from dataclasses import replace

import pytest
from printed_tables import timed_rows

from steptime.errors import UserError
from steptime.logs.training_log import CheckpointTiming, Step, TrainingLog
from steptime.measure.metrics import (
    measure,
    measure_window,
    steady_numbers,
    throughput,
)
from steptime.recipes.flops import model_flops
from steptime.recipes.models import Mode, Run, Window
from steptime.recipes.published import load_reference, published_performance
from steptime.recipes.workloads import list_workloads, load_workload

TIMED = timed_rows()
PUBLISHED = {
    row: recipe
    for name in list_workloads()
    for recipe, _ in load_workload(name).recipes()
    if (row := published_performance(recipe)) and row in TIMED
}
"""The recipe of every published step time, planned from the workload files."""


def test_the_numbers_of_every_published_row_are_the_printed_ones():
    for row in TIMED:
        decimals = load_reference(row.document).decimals
        rates = throughput(PUBLISHED[row], row.step_time_s)
        assert round(rates.tokens_per_s) == row.tokens_per_s, row
        assert rates.tokens_per_s_per_gpu == rates.tokens_per_s / row.gpus
        if row.days_per_1t_tokens is not None:
            days = round(rates.days_per_1t_tokens, decimals.days_per_1t_tokens)
            assert days == row.days_per_1t_tokens, row
        published = throughput(PUBLISHED[row], row.step_time_s, as_published=True)
        assert published.mfu_percent is not None
        assert round(published.mfu_percent, decimals.mfu_percent) == row.mfu_percent, row


def test_mfu_by_the_printed_constants_differs_only_in_the_llama_document():
    different = [
        row.document
        for row, recipe in PUBLISHED.items()
        if round(throughput(recipe, row.step_time_s).mfu_percent or 0, 2) != row.mfu_percent
    ]
    assert different == ["llama3.1-25.04"] * 29


@pytest.mark.parametrize("step_time_s", [0, -1.5, math.nan, math.inf])
def test_a_step_time_that_cannot_be_is_refused(step_time_s):
    with pytest.raises(UserError, match="give a positive number of seconds"):
        throughput(_recipe("llama3.1-25.04", "8b", "bf16", 8), step_time_s)


def test_where_a_document_takes_what_is_logged_a_result_has_the_mfu_of_that():
    """Megatron-Bridge logs TFLOPS, from which documents that start its recipes compute the MFU."""
    recipe = _recipe("llama3.1-25.04", "8b", "bf16", 8).model_copy(
        update={"workload": "acme-1.0", "flops_formula": "megatron-bridge"}
    )
    run = _run(window=Window(first=1, last=2)).model_copy(update={"recipe": recipe})
    log = _log([9.0, 2.0, 2.0])
    steps = [replace(step, tflops_per_gpu=98.9 * number) for number, step in enumerate(log.steps)]
    measured = measure(run, log.model_copy(update={"steps": tuple(steps)}))
    assert measured.tflops_per_gpu_logged == measured.model_tflops_per_gpu == pytest.approx(148.35)
    assert measured.mfu_percent == pytest.approx(15)
    assert (measured.flops_per_sample, measured.flops_source) == (None, "the TFLOPS that a run logs")
    assert measure(run, log).mfu_percent is None, "nobody knows"


@pytest.mark.parametrize("mode", Mode)
def test_only_performance_runs_are_compared_with_the_published_step_time(mode):
    run = _run(window=Window(first=1, last=2))
    run = run.model_copy(update={"recipe": _recipe("llama3.1-25.04", "8b", "bf16", 8), "mode": mode})
    is_compared = measure(run, _log([9.0, 2.0, 2.0])).step_time_over_published is not None
    assert is_compared == (mode is Mode.PERFORMANCE)


def test_a_run_is_measured_over_its_window_only():
    run = _run(window=Window(first=1, last=3))
    measurement = measure(run, _log([100.0, 3.0, 1.0, 2.0, 9.0]))
    assert measurement.steps_in_window == 3
    assert measurement.step_time_mean_s == measurement.step_time_median_s == 2.0
    assert measurement.step_time_std_s == 1.0  # of the sample; the population's is 0.816
    assert measurement.tokens_per_s == 128 * 16 / 2.0
    assert measurement.tokens_per_s_per_gpu == 128 * 16 / 2.0 / 2
    assert measurement.flops_formula == "llama3.1-25.04"
    assert measurement.flops_per_sample == model_flops(run.recipe.model, "llama3.1-25.04")
    assert (measurement.tflops_per_gpu_logged, measurement.checkpoint_save_s) == (None, None)


def test_wall_times_are_of_the_window_where_they_were_logged():
    run = _run(window=Window(first=1, last=3))
    log = _log([2.0] * 5)
    walls = (None, 2.1, 2.3, 2.2, 90.0)
    timed = [replace(step, wall_time_s=wall) for step, wall in zip(log.steps, walls, strict=True)]
    assert measure(run, log.model_copy(update={"steps": tuple(timed)})).wall_time_median_s == 2.2
    assert measure(run, log).wall_time_median_s is None


def test_a_cpu_has_no_mfu():
    measurement = measure(_run(window=Window(first=0, last=0)), _log([5.0]))
    assert (measurement.mfu_percent, measurement.peak_tflops_per_gpu) == (None, None)


def test_the_peak_is_that_of_the_data_sheet():
    run = _run(window=Window(first=0, last=0)).model_copy(
        update={"recipe": _recipe("llama3.1-25.04", "8b", "bf16", 8)}
    )
    measurement = measure(run, _log([12.27]))
    assert measurement.peak_tflops_per_gpu == 989
    assert f"{measurement.mfu_percent:.2f}" == "62.50"


def test_checkpoint_times_are_the_last_of_their_kind():
    timings = [("load", 9.7, 9.7), ("save", 4.4, 4.4), ("save", 14.6, 4.6)]
    log = _log([1.0]).model_copy(
        update={
            "checkpoints": tuple(
                CheckpointTiming(
                    kind=kind, iteration=None, started_at=0, duration_s=duration, blocked_s=blocked
                )
                for kind, duration, blocked in timings
            )
        }
    )
    measurement = measure(_run(window=Window(first=0, last=0)), log)
    assert (measurement.checkpoint_save_s, measurement.checkpoint_blocked_s) == (14.6, 4.6)
    assert measurement.checkpoint_load_s == 9.7


@pytest.mark.parametrize(
    ("step_times", "window", "sentence"),
    [
        (
            [1.0] * 8,
            Window(first=10, last=19),
            "run.out has no step time in the window 10:19: global steps 10 to 19 are missing; "
            "the log has steps 0 to 7.",
        ),
        ([], Window(first=0, last=1), "global steps 0 to 1 are missing, as is every other step."),
        (
            [1.0, math.nan],
            Window(first=0, last=1),
            "the step time of global step 1 is nan s, which is not a positive number.",
        ),
    ],
)
def test_a_window_without_usable_steps_is_refused(step_times, window, sentence):
    with pytest.raises(UserError) as error:
        measure(_run(window=window), _log(step_times))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("window", "steps", "spread", "median"),
    [
        # Steps take 0, 1, 2, … s, and 0 s is not a time: the last 20 steps count, or a longer window.
        (Window(first=5, last=9), "10:29", 9.5, 19.5),
        (Window(first=5, last=24), "10:29", 9.5, 19.5),
        (Window(first=5, last=25), "5:25", 10.0, 15.0),
        (Window(first=0, last=29), "1:29", 14.0, 15.0),
    ],
)
def test_a_run_is_judged_by_its_steady_steps(window, steps, spread, median):
    log = _log([float(number) for number in range(30)])
    assert steady_numbers(log, window) == {
        "steady_steps": steps,
        "steady_step_time_s": median,
        "steady_step_time_iqr_s": spread,
    }


def test_one_steady_step_has_no_spread_and_none_no_numbers():
    window = Window(first=0, last=9)
    assert steady_numbers(_log([math.nan, 0.5, -1.0, math.inf, 0.0]), window) == {
        "steady_steps": "1:1",
        "steady_step_time_s": 0.5,
        "steady_step_time_iqr_s": None,
    }
    assert steady_numbers(_log([math.nan]), window) == {}
    assert steady_numbers(_log([1.0, 3.0]), window)["steady_step_time_iqr_s"] == 1.0


@pytest.mark.parametrize("size", [None, "16"])
def test_a_log_gives_rates_where_its_record_has_the_sizes(size):
    started = {"seq_length": 128, "global_batch_size": 16, "world_size": 4}
    window = Window(first=0, last=0)
    measured = measure_window(_log([0.5], started=started), window)
    assert (measured.tokens_per_s, measured.tokens_per_s_per_gpu) == (4096.0, 1024.0)
    for name in started:
        lacking = measure_window(_log([0.5], started=started | {name: size}), window)
        assert (lacking.tokens_per_s, lacking.step_time_mean_s) == (None, 0.5)
    alone = measure_window(_log([0.5], started=dict.fromkeys(started, 1)), window)
    assert alone.tokens_per_s_per_gpu == 2.0


def _recipe(workload, size, dtype, gpus):
    return next(
        recipe
        for recipe, _ in load_workload(workload).recipes()
        if (recipe.size, recipe.dtype, recipe.gpus, recipe.scaling) == (size, dtype, gpus, "weak")
    )


def _run(*, window):
    """Return a run of the tiny Llama on two CPU processes: 16 samples of 128 tokens a step."""
    return Run(
        experiment="pretrain_llama3.1_tiny_fp32_2",
        recipe=_recipe("llama3.1-25.04", "tiny", "fp32", 2),
        mode=Mode.PERFORMANCE,
        max_steps=20,
        window=window,
        time_limit_s=600,
        cluster="local",
    )


def _log(step_times, *, started=None):
    steps = tuple(Step(global_step=step, step_time_s=time) for step, time in enumerate(step_times))
    return TrainingLog(path="run.out", format="nemo2", bytes_read=0, steps=steps, started=started)


def test_the_trainers_own_rate_has_mean_and_deviation_and_memory_its_peak():
    rates, sizes = (500.0, 502.0, 504.0), (3 << 30, 5 << 30, 4 << 30)
    steps = tuple(
        Step(global_step=at, step_time_s=1.0, tflops_per_gpu=rate, peak_memory_bytes=size)
        for at, (rate, size) in enumerate(zip(rates, sizes, strict=True))
    )
    log = TrainingLog(path="x", format="nemo2", bytes_read=1, steps=steps)
    measured = measure_window(log, Window(first=1, last=2))
    assert (measured.tflops_per_gpu_logged, measured.tflops_per_gpu_logged_std) == (503.0, math.sqrt(2))
    assert measured.peak_memory_gib == 5.0
    over_one_step = measure_window(log, Window(first=2, last=2))
    assert (over_one_step.tflops_per_gpu_logged, over_one_step.tflops_per_gpu_logged_std) == (504.0, None)
    untold = measure_window(log.model_copy(update={"steps": (Step(0, 1.0),)}), Window(first=0, last=0))
    assert (untold.tflops_per_gpu_logged, untold.peak_memory_gib) == (None, None)


def test_every_number_of_a_window_in_which_some_steps_lack_some():
    """The window has the steps 1 to 4, of which one was printed without a time, and no other without."""
    steps = (
        Step(0, 99.0, tflops_per_gpu=1.0, wall_time_s=99.0),
        Step(1, 2.0, tflops_per_gpu=500.0, wall_time_s=2.1, peak_memory_bytes=3 << 30),
        Step(2, None, tflops_per_gpu=None, wall_time_s=None),
        Step(3, 5.0, tflops_per_gpu=None, wall_time_s=5.1, peak_memory_bytes=7 << 30),
        Step(4, 2.0, tflops_per_gpu=510.0, wall_time_s=None),
        Step(5, 99.0, tflops_per_gpu=1.0, wall_time_s=99.0, peak_memory_bytes=9 << 30),
    )
    checkpoints = [
        # kind, duration and wait in seconds; an unfinished save has no duration
        *(("load", 3.0, 3.0), ("load", 4.0, 4.0), ("load", None, None)),
        *(("save", 9.0, 8.0), ("save", 7.0, 6.0), ("save", None, 5.0)),
    ]
    log = TrainingLog(
        path="run.out",
        format="nemo2",
        bytes_read=0,
        steps=steps,
        started={"seq_length": 128, "global_batch_size": 16, "world_size": 4},
        collective={"messages": [{"bus_bandwidth_gb_s": 100.5}, {"bus_bandwidth_gb_s": 360.5}]},
        checkpoints=tuple(
            CheckpointTiming(kind=kind, iteration=None, started_at=0, duration_s=duration, blocked_s=blocked)
            for kind, duration, blocked in checkpoints
        ),
    )
    measured = measure_window(log, Window(first=1, last=4)).model_dump(exclude_none=True)
    assert measured == {
        "window": {"first": 1, "last": 4},
        **{"steps_in_window": 3, "step_time_mean_s": 3.0, "step_time_median_s": 2.0},
        **{"step_time_std_s": pytest.approx(math.sqrt(3)), "wall_time_median_s": pytest.approx(3.6)},
        **{"tflops_per_gpu_logged": 505.0, "tflops_per_gpu_logged_std": pytest.approx(math.sqrt(50))},
        **{"tokens_per_s": pytest.approx(128 * 16 / 3), "tokens_per_s_per_gpu": pytest.approx(128 * 4 / 3)},
        **{"days_per_1t_tokens": pytest.approx(1e12 * 3 / (128 * 16) / 86_400)},
        **{"peak_memory_gib": 9.0, "bus_bandwidth_gb_s": 360.5},
        **{"checkpoint_save_s": 7.0, "checkpoint_blocked_s": 6.0, "checkpoint_load_s": 4.0},
    }
    assert steady_numbers(log, Window(first=2, last=3))["steady_steps"] == "0:5"
    blocked = log.model_copy(update={"checkpoints": log.checkpoints[-1:]})
    waited = measure_window(blocked, Window(first=1, last=4))
    assert (waited.checkpoint_save_s, waited.checkpoint_blocked_s) == (None, 5.0)
