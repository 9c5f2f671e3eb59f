"""From step times to throughput: tokens per second, days to a trillion tokens, model flops utilization (MFU).

The formulas are those of the recipe documents. `throughput` gives all of them for one recipe and one step
time; `measure` applies it to the steps of a run's window.
"""

import math

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.logs.models import TrainingLog
from steptime.logs.statistics import checkpoint_seconds, window_statistics
from steptime.recipes.flops import model_flops
from steptime.recipes.gpus import Peak, peak_tflops
from steptime.recipes.models import Recipe, Run
from steptime.recipes.published import AsPublished, list_references, load_reference
from steptime.results.models import Measurement

SECONDS_PER_DAY = 86_400


def tokens_per_s(seq_length: int, global_batch_size: int, step_time_s: float) -> float:
    """Tokens the whole job trains per second. Raises UserError unless the time is positive and finite."""
    if not (math.isfinite(step_time_s) and step_time_s > 0):
        raise UserError(f"a step time of {step_time_s} s cannot be: it must be a positive number of seconds.")
    return seq_length * global_batch_size / step_time_s


def days_per_1t_tokens(tokens_per_second: float) -> float:
    """Days that training on 10¹² tokens would take at this rate."""
    return 1e12 / tokens_per_second / SECONDS_PER_DAY


def model_tflops_per_gpu(
    *, flops_per_sample: float, global_batch_size: int, step_time_s: float, gpus: int
) -> float:
    """Useful arithmetic of one GPU, TFLOPS: model flops by a named formula over step time and GPUs."""
    return global_batch_size * flops_per_sample / step_time_s / gpus / 1e12


def mfu_percent(model_tflops: float, peak: float) -> float:
    """Model flops utilization in percent, of a GPU's model TFLOPS and its peak TFLOPS."""
    return 100 * model_tflops / peak


class Throughput(Frozen):
    """What a step time means for a recipe, with everything the numbers rest on."""

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    days_per_1t_tokens: float
    mfu_percent: float | None
    """None where the peak is measured in the run, and no run is at hand."""
    flops_formula: str
    flops_per_sample: float
    flops_source: str
    """Whether the document states the flops, or its formula gives them."""
    model_tflops_per_gpu: float
    peak_tflops_per_gpu: float | None
    peak_source: str


def throughput(
    recipe: Recipe, step_time_s: float, *, peak: Peak | None = None, as_published: bool = False
) -> Throughput:
    """All rates of a recipe at one step time.

    `peak` replaces the peak of `config/gpus.yaml`. `as_published` takes the constants that reproduce the
    document's printed MFU where they differ from those it prints (`config/references/`). Raises UserError for
    a step time that is not positive and finite, or that no rate can be computed from.
    """
    rate = tokens_per_s(recipe.model.seq_length, recipe.global_batch_size, step_time_s)
    flops, flops_source = _flops_per_sample(recipe, as_published=as_published)
    model_tflops = model_tflops_per_gpu(
        flops_per_sample=flops,
        global_batch_size=recipe.global_batch_size,
        step_time_s=step_time_s,
        gpus=recipe.gpus,
    )
    divisor = peak or _peak(recipe, as_published=as_published)
    rates = Throughput(
        step_time_s=step_time_s,
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate / recipe.gpus,
        days_per_1t_tokens=days_per_1t_tokens(rate),
        mfu_percent=None if divisor.tflops is None else mfu_percent(model_tflops, divisor.tflops),
        flops_formula=recipe.flops_formula,
        flops_per_sample=flops,
        flops_source=flops_source,
        model_tflops_per_gpu=model_tflops,
        peak_tflops_per_gpu=divisor.tflops,
        peak_source=divisor.source,
    )
    if not all(math.isfinite(number) for number in rates.model_dump().values() if isinstance(number, float)):
        raise UserError(
            f"a step time of {step_time_s:g} s at a peak of {divisor.tflops} TFLOPS is out of range."
        )
    return rates


def measure(run: Run, log: TrainingLog) -> Measurement:
    """The numbers of a run over its window, from the mean step time of the steps that were logged in it.

    The peak of CPU runs is the one the trainer measured at the start. Raises UserError naming the steps where
    the log has none of the window, or where a step time is not positive and finite. An incomplete window is
    measured over what is there: `results.quality` decides whether that counts.
    """
    times = window_statistics(log, run.window)
    rates = throughput(run.recipe, times.step_time_mean_s, peak=_peak_of_run(run.recipe, log))
    return Measurement(
        window=run.window,
        steps_in_window=times.steps_in_window,
        step_time_mean_s=times.step_time_mean_s,
        step_time_median_s=times.step_time_median_s,
        step_time_std_s=times.step_time_std_s,
        wall_time_median_s=times.wall_time_median_s,
        tokens_per_s=rates.tokens_per_s,
        tokens_per_s_per_gpu=rates.tokens_per_s_per_gpu,
        days_per_1t_tokens=rates.days_per_1t_tokens,
        model_tflops_per_gpu=rates.model_tflops_per_gpu,
        peak_tflops_per_gpu=rates.peak_tflops_per_gpu,
        peak_source=rates.peak_source,
        mfu_percent=rates.mfu_percent,
        flops_formula=rates.flops_formula,
        tflops_per_gpu_logged=times.tflops_per_gpu_logged,
        **checkpoint_seconds(log),
    )


def _flops_per_sample(recipe: Recipe, *, as_published: bool) -> tuple[float, str]:
    """Model flops of one sample and where they come from: stated by the document, or by its formula."""
    if recipe.workload in list_references():
        reference = load_reference(recipe.workload)
        if as_published and (found := _flops_as_published(recipe, reference.as_published)):
            return found
        if recipe.size in reference.stated_model_flops:
            return reference.stated_model_flops[recipe.size], f"as stated by {recipe.workload}"
    return model_flops(recipe.model, recipe.flops_formula), f"by the formula {recipe.flops_formula}"


def _flops_as_published(recipe: Recipe, constants: AsPublished) -> tuple[float, str] | None:
    if recipe.size in constants.model_flops:
        return constants.model_flops[recipe.size], f"reproduces the tables of {recipe.workload}"
    if recipe.size in constants.num_query_groups:
        groups = constants.num_query_groups[recipe.size]
        shape = recipe.model.model_copy(update={"num_query_groups": groups})
        flops = model_flops(shape, recipe.flops_formula)
        return flops, f"by the formula {recipe.flops_formula} with {groups} query groups, as its tables"
    return None


def _peak(recipe: Recipe, *, as_published: bool) -> Peak:
    if as_published and recipe.workload in list_references():
        published = load_reference(recipe.workload).as_published.peak_tflops.get(recipe.gpu_type, {})
        if recipe.dtype in published:
            return Peak(tflops=published[recipe.dtype], source=f"reproduces the tables of {recipe.workload}")
    return peak_tflops(recipe.gpu_type, recipe.dtype)


def _peak_of_run(recipe: Recipe, log: TrainingLog) -> Peak:
    """The data sheet's peak, or that of the trainer's start record; no tflops where neither has it."""
    peak = peak_tflops(recipe.gpu_type, recipe.dtype)
    measured = (log.started or {}).get("peak_tflops_per_rank")
    if peak.tflops is None and measured is not None:
        return Peak(tflops=float(measured), source=str((log.started or {}).get("peak_source", peak.source)))
    return peak
