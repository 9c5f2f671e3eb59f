"""Compute throughput from step times: tokens per second, days to a trillion tokens, model FLOPs utilization.

The formulas are those of the publications. `throughput` gives all numbers for one recipe and one step time;
`measure` applies it to the steps of a run's window, `measure_window` needs no plan.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from steptime.errors import UserError
from steptime.logs.training_log import TrainingLog
from steptime.measure.gpu_samples import energy
from steptime.recipes.flops import Flops, model_flops, recipe_flops
from steptime.recipes.gpus import Peak, peak_tflops
from steptime.recipes.models import Mode, ModelShape, Recipe, Run, Window
from steptime.recipes.published import (
    PUBLISHED_THROUGHPUT,
    AsPublished,
    list_references,
    load_reference,
    published_performance,
)
from steptime.store.run_models import Measurement

SECONDS_PER_DAY = 86_400

STEADY_STEPS = 20
"""A run is judged by this many steps at its end, or by its whole window if that is longer."""


def tokens_per_s(seq_length: int, global_batch_size: int, step_time_s: float) -> float:
    """Return the tokens that the whole job trains per second.

    Raises UserError unless the step time is positive and finite.
    """
    if not (math.isfinite(step_time_s) and step_time_s > 0):
        raise UserError(f"a step time of {step_time_s} s is impossible: give a positive number of seconds.")
    return seq_length * global_batch_size / step_time_s


def days_per_1t_tokens(tokens_per_second: float) -> float:
    """Return how many days training on 10¹² tokens takes at this rate."""
    return 1e12 / tokens_per_second / SECONDS_PER_DAY


def model_tflops_per_gpu(
    *, flops_per_sample: float, global_batch_size: int, step_time_s: float, gpus: int
) -> float:
    """Return the model TFLOPS of one GPU: the model's flops per step over step time and number of GPUs."""
    return global_batch_size * flops_per_sample / step_time_s / gpus / 1e12


def mfu_percent(model_tflops: float, peak: float) -> float:
    """Return the model flops utilization in percent: the model TFLOPS of a GPU over its peak TFLOPS."""
    return 100 * model_tflops / peak


def against_publication(over_published: float) -> str:
    """Return `passes` if a run reaches at least 95 % of the published throughput, else `below`.

    `over_published` is its step time divided by the published one.
    """
    return "passes" if 1 / over_published >= PUBLISHED_THROUGHPUT else "below"


def gpu_hours(gpus: int, started_at: float | None, ended_at: float | None) -> float | None:
    """Return the GPU-hours of a job between two Unix times; None if it never started or has not ended."""
    if started_at is None or ended_at is None:
        return None
    return gpus * max(0.0, ended_at - started_at) / 3600


def throughput(
    recipe: Recipe,
    step_time_s: float,
    *,
    peak: Peak | None = None,
    as_published: bool = False,
    logged_tflops: float | None = None,
) -> Measurement:
    """Return the throughput and MFU of a recipe at a given step time, and the published step time.

    The MFU is None if the model's flops are unknown, or if no document states the peak (CPU). The days to a
    trillion tokens are None for proxies and on the CPU. Raises UserError for a step time that is not positive
    and finite, or from which no rate can be computed.

    Args:
        recipe: the recipe.
        step_time_s: the step time.
        peak: replaces the peak of `config/gpus.yaml`.
        as_published: the MFU that NVIDIA prints does not always follow from the constants that NVIDIA states.
            If True, use the constants (peak, flops) that reproduce it, from `config/references/`.
        logged_tflops: TFLOPS per GPU as logged, for publications whose MFU is based on them.
    """
    # First, as it refuses step times that cannot be.
    of_tokens = _token_rates(recipe.model.seq_length, recipe.global_batch_size, recipe.gpus, step_time_s)
    if recipe.proxy or recipe.gpu_type == "cpu":  # nobody trains them on that many tokens
        of_tokens.pop("days_per_1t_tokens", None)
    flops = _flops_per_sample(recipe, as_published=as_published)
    model_tflops = logged_tflops if flops.logged else None
    if flops.per_sample is not None:
        model_tflops = model_tflops_per_gpu(
            flops_per_sample=flops.per_sample,
            global_batch_size=recipe.global_batch_size,
            step_time_s=step_time_s,
            gpus=recipe.gpus,
        )
    divisor = peak or _peak(recipe, as_published=as_published)
    published = published_performance(recipe)
    published_s = published.step_time if published else None
    rates = Measurement(
        step_time_mean_s=step_time_s,
        **of_tokens,
        flops_formula=recipe.flops_formula,
        flops_per_sample=flops.per_sample,
        flops_source=flops.source,
        model_tflops_per_gpu=model_tflops,
        peak_tflops_per_gpu=divisor.tflops,
        peak_source=divisor.source,
        mfu_percent=None
        if divisor.tflops is None or model_tflops is None
        else mfu_percent(model_tflops, divisor.tflops),
        published_step_time_s=published_s,
        step_time_over_published=None if published_s is None else step_time_s / published_s,
    )
    if not all(math.isfinite(number) for number in rates.model_dump().values() if isinstance(number, float)):
        raise UserError(
            f"a step time of {step_time_s:g} s at a peak of {divisor.tflops} TFLOPS gives rates that are not "
            "finite: check both numbers."
        )
    return rates


def measure(run: Run, log: TrainingLog) -> Measurement:
    """Measure a run over its window: throughput and MFU by the mean of the step times logged in it.

    An incomplete window is measured over the steps it has; `measure.quality` decides whether the run is
    valid. Only performance runs without tuning get a published step time. Raises UserError naming the steps
    if the log has none of the window, or if a step time is not positive and finite.
    """
    times = measure_window(log, run.window)
    rates = throughput(run.recipe, times.step_time_mean_s, logged_tflops=times.tflops_per_gpu_logged)
    if run.tuning or run.mode is not Mode.PERFORMANCE:  # the document has no such run
        rates = rates.model_copy(update={"published_step_time_s": None, "step_time_over_published": None})
    steady = steady_numbers(log, run.window)
    days = {"days_per_1t_tokens": rates.days_per_1t_tokens}
    return times.model_copy(update=rates.model_dump(exclude_none=True) | days | steady)


def steady_numbers(log: TrainingLog, window: Window) -> dict[str, Any]:
    """Return the median and interquartile range of a run's steady steps, and which steps these are.

    The steady steps are the last `STEADY_STEPS` of the run, or the window if that is longer. The keys are
    fields of `Measurement`; without usable step times the result is empty. Runs are compared with each other
    by this median, because the window is that of the publication, which may be a single step.
    """
    every = {step.global_step: step.step_time_s for step in log.steps if step.step_time_s is not None}
    times = {step: time for step, time in every.items() if math.isfinite(time) and time > 0}
    steady = steady_steps(times, window)
    if not steady:
        return {}
    spread = None
    if len(steady) > 1:
        lower, _, upper = statistics.quantiles(steady.values(), method="inclusive")
        spread = upper - lower
    return {
        "steady_steps": f"{min(steady)}:{max(steady)}",
        "steady_step_time_s": statistics.median(steady.values()),
        "steady_step_time_iqr_s": spread,
    }


def steady_steps(step_times: Mapping[int, float], window: Window) -> dict[int, float]:
    """Return the step times of the last `STEADY_STEPS` steps, or of the window if that is longer.

    They are in seconds by global step.
    """
    if window.last - window.first + 1 > STEADY_STEPS:
        return {step: time for step, time in step_times.items() if window.first <= step <= window.last}
    return {step: step_times[step] for step in sorted(step_times)[-STEADY_STEPS:]}


def measure_window(log: TrainingLog, window: Window) -> Measurement:
    """Measure over `window` a log whose plan is unknown.

    Token rates and energy are known only if the trainer recorded the batch size and the sequence length.

    An incomplete window is measured over the steps it has. Raises UserError naming the steps if none has a
    step time, or if a step time is not positive and finite.
    """
    steps = [step for step in log.steps if window.first <= step.global_step <= window.last]
    times = {step.global_step: step.step_time_s for step in steps if step.step_time_s is not None}
    if not times:
        raise UserError(f"{log.path} has no step time in the window {window}: {_what_is_there(log, window)}.")
    for global_step, time in times.items():
        if not (math.isfinite(time) and time > 0):
            raise UserError(
                f"{log.path}: the step time of global step {global_step} is {time} s, which is not a "
                f"positive number."
            )
    tflops = [step.tflops_per_gpu for step in steps if step.tflops_per_gpu is not None]
    wall_times = [step.wall_time_s for step in steps if step.wall_time_s is not None]
    mean_s = statistics.fmean(times.values())
    return Measurement(
        window=window,
        steps_in_window=len(times),
        step_time_mean_s=mean_s,
        step_time_median_s=statistics.median(times.values()),
        step_time_std_s=statistics.stdev(times.values()) if len(times) > 1 else None,
        wall_time_median_s=statistics.median(wall_times) if wall_times else None,
        tflops_per_gpu_logged=statistics.fmean(tflops) if tflops else None,
        tflops_per_gpu_logged_std=statistics.stdev(tflops) if len(tflops) > 1 else None,
        peak_memory_gib=peak_memory_gib(log),
        bus_bandwidth_gb_s=bus_bandwidth_gb_s(log),
        **_logged_rates(log, mean_s),
        **checkpoint_seconds(log),
    )


def peak_memory_gib(log: TrainingLog) -> float | None:
    """Return the largest GPU memory in GiB that a step of the log reports; None if no step does."""
    sizes = [step.peak_memory_bytes for step in log.steps if step.peak_memory_bytes is not None]
    return max(sizes) / 2**30 if sizes else None


def bus_bandwidth_gb_s(log: TrainingLog) -> float | None:
    """Return a collective benchmark's bus bandwidth for its largest message (10⁹ bytes/s).

    None for a training.
    """
    messages = (log.collective or {}).get("messages")
    return float(messages[-1]["bus_bandwidth_gb_s"]) if messages else None


def checkpoint_seconds(log: TrainingLog) -> dict[str, Any]:
    """Return the seconds of the last save and the last load in a log, by fields of `Measurement`.

    `checkpoint_save_s` is from the start of the save until it was complete on disk; `checkpoint_blocked_s` is
    how long training waited for it, which is less if it was asynchronous. Times that the log lacks are None.
    """
    saves = [checkpoint for checkpoint in log.checkpoints if checkpoint.kind == "save"]
    timed = [checkpoint for checkpoint in saves if checkpoint.duration_s is not None]
    save = next(
        reversed(timed or [checkpoint for checkpoint in saves if checkpoint.blocked_s is not None]), None
    )
    loads = [
        checkpoint.duration_s
        for checkpoint in log.checkpoints
        if checkpoint.kind == "load" and checkpoint.duration_s is not None
    ]
    return {
        "checkpoint_save_s": save.duration_s if save else None,
        "checkpoint_blocked_s": save.blocked_s if save else None,
        "checkpoint_load_s": loads[-1] if loads else None,
    }


def _what_is_there(log: TrainingLog, window: Window) -> str:
    """Say that the steps of the window are missing, and which steps the log has instead."""
    first, last = window.first, window.last
    missing = f"global step {first} is" if first == last else f"global steps {first} to {last} are"
    numbers = [step.global_step for step in log.steps]
    if not numbers:
        return f"{missing} missing, as is every other step"
    return f"{missing} missing; the log has steps {min(numbers)} to {max(numbers)}"


def _logged_rates(log: TrainingLog, step_time_s: float) -> dict[str, Any]:
    """Return token rates and energy; empty if the trainer did not record batch size and sequence length."""
    started = log.started or {}
    sizes: list[Any] = [started.get(name) for name in ("seq_length", "global_batch_size", "world_size")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return {}
    seq_length, global_batch_size, gpus = sizes
    return {
        **_token_rates(seq_length, global_batch_size, gpus, step_time_s),
        **energy(log.gpu_samples, gpus, seq_length * global_batch_size, step_time_s),
    }


def _token_rates(
    seq_length: int | None, global_batch_size: int, gpus: int, step_time_s: float
) -> dict[str, Any]:
    rate = tokens_per_s(seq_length or 1, global_batch_size, step_time_s)
    if seq_length is None:  # no model is trained
        return {}
    return {
        "tokens_per_s": rate,
        "tokens_per_s_per_gpu": rate / gpus,
        "days_per_1t_tokens": days_per_1t_tokens(rate),
    }


def _flops_per_sample(recipe: Recipe, *, as_published: bool) -> Flops:
    """Return the model FLOPs of one sample, as stated or by a formula, with their source."""
    if recipe.workload in list_references():
        reference = load_reference(recipe.workload)
        if as_published and (published := _flops_as_published(recipe, reference.as_published)):
            return published
        if recipe.size in reference.stated_model_flops:
            return Flops(reference.stated_model_flops[recipe.size], f"as stated by {recipe.workload}")
    return recipe_flops(recipe)


def _flops_as_published(recipe: Recipe, constants: AsPublished) -> Flops | None:
    if recipe.size in constants.model_flops:
        return Flops(constants.model_flops[recipe.size], f"reproduces the tables of {recipe.workload}")
    if recipe.size in constants.num_query_groups and isinstance(recipe.model, ModelShape):
        groups = constants.num_query_groups[recipe.size]
        shape = recipe.model.model_copy(update={"num_query_groups": groups})
        flops = model_flops(shape, recipe.flops_formula)
        return Flops(
            flops, f"by the formula {recipe.flops_formula} with {groups} query groups, as its tables"
        )
    return None


def _peak(recipe: Recipe, *, as_published: bool) -> Peak:
    if as_published and recipe.workload in list_references():
        published = load_reference(recipe.workload).as_published.peak_tflops.get(recipe.gpu_type, {})
        if recipe.dtype in published:
            return Peak(tflops=published[recipe.dtype], source=f"reproduces the tables of {recipe.workload}")
    return peak_tflops(recipe.gpu_type, recipe.dtype)


def peak_source(row: Mapping[str, Any]) -> str | None:
    """Return the source of the peak behind a run's MFU; None without one, or if gpus.yaml has another now."""
    try:
        peak = peak_tflops(row["gpu_type"], row["dtype"])
    except UserError:
        return None
    return peak.source if peak.tflops is not None and peak.tflops == row["peak_tflops_per_gpu"] else None
