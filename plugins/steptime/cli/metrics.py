"""`steptime metrics`: tokens/s, MFU and training time at a step time, beside the published numbers."""

import math
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, show, show_json
from steptime.errors import UserError, one_line
from steptime.measure.metrics import throughput
from steptime.measure.report import change_in_words
from steptime.recipes.gpus import Peak
from steptime.recipes.models import Collective, Recipe
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.published import PerformanceRow, published_performance
from steptime.refusals import describe_validation_error
from steptime.store.run_models import Measurement

_MAX_GBS = 1_000_000_000
_RATES = {
    *("tokens_per_s", "tokens_per_s_per_gpu", "days_per_1t_tokens", "mfu_percent"),
    *("flops_formula", "flops_per_sample", "flops_source"),
    *("model_tflops_per_gpu", "peak_tflops_per_gpu", "peak_source"),
    *("published_step_time_s", "step_time_over_published"),
}

EXAMPLES = """
[bold]Examples[/bold]

steptime metrics --workload llama3.1 --size 8b --dtype bf16 --gpu-type h100 --gpus 8 --step-time 12.27

steptime metrics --workload nemotron-h --size 56b --dtype fp8 --gpu-type h100 --gpus 256 --step-time 15.9
--format json
"""


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def metrics(
    *,
    workload: Annotated[str, typer.Option(help="Workload: llama3.1-25.04, or llama3.1 for its default.")],
    size: Annotated[str, typer.Option(help="Model size, as 8b; proxies are 405b-proxy.")],
    dtype: Annotated[str, typer.Option(help="Number format, as bf16.")],
    gpu_type: Annotated[str, typer.Option(help="Type of GPU, as h100.")],
    gpus: Annotated[int, typer.Option(help="Number of GPUs.")],
    step_time: Annotated[float, typer.Option(help="Seconds per training step.")],
    scaling: Annotated[
        str, typer.Option(help="weak, or strong if the recipe's publication has it.")
    ] = "weak",
    gbs: Annotated[
        int | None,
        typer.Option(help="Global batch size, if it is not the published one.", show_default=False),
    ] = None,
    peak_tflops: Annotated[
        float | None,
        typer.Option(help="Peak TFLOPS of one GPU, instead of config/gpus.yaml.", show_default=False),
    ] = None,
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            help="MFU with the constants that reproduce the MFU in NVIDIA's publication, where these differ "
            "from the constants that it states.",
        ),
    ] = False,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Compute tokens per second, MFU and days to a trillion tokens of a recipe at one step time.

    Each MFU is shown with its formula and peak, next to the numbers that were published for the recipe.
    """
    request = PlanRequest(
        workload=workload, size=size, dtype=dtype, gpu_type=gpu_type, gpus=str(gpus), scaling=scaling
    )
    recipe = _with_batch(plan(request).runs[0].recipe, gbs)
    if isinstance(recipe.model, Collective):
        raise UserError(f"{recipe.workload} {recipe.size} trains no model: nothing can be computed for it.")
    rates = throughput(recipe, step_time, peak=_given_peak(peak_tflops), as_published=as_published)
    published = published_performance(recipe)
    if output_format is Format.TABLE:
        title = f"{recipe.workload} {recipe.size} {recipe.dtype} on {recipe.gpus} × {recipe.gpu_type}"
        columns = ["metric", "value", *(["published"] if published else []), "basis"]
        lines = _lines(recipe, rates, published)
        show(lines, Format.TABLE, called="metrics", columns=columns, title=title, wide=wide)
    elif output_format is Format.JSON:
        show_json({"metrics": _record(recipe, rates, published)})
    else:
        show([_record(recipe, rates, published)], output_format, called="metrics")


def _with_batch(recipe: Recipe, gbs: int | None) -> Recipe:
    """Return the recipe with this global batch size, if any. Raises UserError if the GPUs cannot share it."""
    if gbs is None:
        return recipe
    if gbs > _MAX_GBS:
        raise UserError(f"--gbs {one_line(gbs)}: must be at most {_MAX_GBS}.")
    try:
        return Recipe.model_validate(recipe.model_dump() | {"global_batch_size": gbs})
    except ValidationError as error:
        raise UserError(f"--gbs {gbs}: {describe_validation_error(error.errors()[0])}.") from None


def _given_peak(tflops: float | None) -> Peak | None:
    if tflops is None:
        return None
    if not (math.isfinite(tflops) and tflops > 0):
        raise UserError(f"--peak-tflops {tflops}: must be a positive number of TFLOPS.")
    return Peak(tflops=tflops, source="given with --peak-tflops")


def _record(recipe: Recipe, rates: Measurement, published: PerformanceRow | None) -> dict[str, Any]:
    """Return all values, unrounded, for CSV and JSON."""
    return {
        **recipe.identity,
        "seq_length": recipe.model.seq_length,
        "global_batch_size": recipe.global_batch_size,
        "step_time_s": rates.step_time_mean_s,
        **rates.model_dump(include=_RATES),
        "published_tokens_per_s": published.tokens_per_s if published else None,
        "published_mfu_percent": published.mfu_percent if published else None,
    }


def _lines(
    recipe: Recipe, rates: Measurement, published: PerformanceRow | None
) -> list[dict[str, str | None]]:
    """Return the rows of the table: each value with the published one and how it is computed."""
    batch, seq_length = recipe.global_batch_size, recipe.model.seq_length
    tflops = rates.peak_tflops_per_gpu
    peak = rates.peak_source if tflops is None else f"{tflops:g} TFLOPS ({rates.peak_source})"
    lines: list[dict[str, str | None]] = [
        {"metric": "step time", "value": f"{rates.step_time_mean_s:g} s"},
        {
            "metric": "tokens/s",
            "value": f"{rates.tokens_per_s:,.0f}",
            "basis": f"sequence {seq_length} × global batch {batch} / step time",
        },
        {
            "metric": "tokens/s/GPU",
            "value": f"{rates.tokens_per_s_per_gpu:,.1f}",
            "basis": f"on {recipe.gpus} GPUs",
        },
        {
            "metric": "MFU",
            "value": None if rates.mfu_percent is None else f"{rates.mfu_percent:.2f} %",
            "basis": f"formula {rates.flops_formula}; peak {peak}",
        },
        {
            "metric": "model flops",
            "value": None
            if rates.model_tflops_per_gpu is None
            else f"{rates.model_tflops_per_gpu:,.4g} TFLOPS/GPU",
            "basis": rates.flops_source
            if rates.flops_per_sample is None
            else f"{rates.flops_per_sample:.5g} per sample, {rates.flops_source}",
        },
        {
            "metric": "days to 1T tokens",
            "value": None if rates.days_per_1t_tokens is None else f"{rates.days_per_1t_tokens:,.2f}",
            "basis": "not for proxies and CPU sizes" if rates.days_per_1t_tokens is None else None,
        },
    ]
    if published:
        printed = {
            "step time": _as_printed(published.step_time, "{:g} s"),
            "tokens/s/GPU": None
            if published.tokens_per_s_per_gpu is None
            else f"{published.tokens_per_s_per_gpu:,}",
            "tokens/s": _as_printed(published.tokens_per_s, "{:,}"),
            "MFU": _as_printed(published.mfu_percent, "{:.2f} %"),
            "model flops": None
            if published.tflops_per_gpu is None
            else f"{published.tflops_per_gpu:,.4g} TFLOPS/GPU",
            "days to 1T tokens": _as_printed(published.days_per_1t_tokens, "{:g}"),
        }
        for line in lines:
            line["published"] = printed.get(line["metric"] or "")
        if rates.step_time_over_published is not None:
            lines[0]["basis"] = f"{change_in_words(rates.step_time_over_published)} than published"
    return lines


def _as_printed(number: float | None, form: str) -> str:
    return "n/a" if number is None else form.format(number)
