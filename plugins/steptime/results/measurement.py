"""The numbers of a run, each declared once: as a field here, which `results.columns` makes a column of."""

from typing import Annotated, Any

from steptime.frozen import Frozen
from steptime.recipes.models import Window


def _column(description: str, **options: Any) -> dict[str, Any]:
    """What `results.columns.Column` has of a field, beside its name and its kind."""
    return {"description": description, **options}


class Measurement(Frozen):
    """The numbers of a recipe at one step time, over the window of a log or for a step time that was given.

    Percent is written out: `mfu_percent` 62.5 means 62.5 %. What nobody knows is None: of a given step time
    everything about a window; of a log without its plan the rates that need one.
    """

    window: Window | None = None
    steps_in_window: Annotated[int | None, _column("Steps of the window that have a step time.")] = None
    step_time_mean_s: Annotated[
        float,
        _column("Mean step time of the window.", heading="step time", unit="s", priority=0, in_events=True),
    ]
    step_time_std_s: Annotated[
        float | None,
        _column(
            "Sample standard deviation of the step times (n - 1); none of a single step.",
            heading="± std",
            unit="s",
            priority=3,
            decimals_of="step_time_mean_s",
        ),
    ] = None
    step_time_median_s: Annotated[
        float | None, _column("Median step time of the window.", heading="median step time", unit="s")
    ] = None
    steady_steps: Annotated[
        str | None,
        _column(
            "First and last of the steady steps: the last 20 of the run, or its window if that is longer.",
            heading="steady",
            unit="steps",
        ),
    ] = None
    steady_step_time_s: Annotated[
        float | None,
        _column(
            "Median step time of the steady steps: what a run is judged by.",
            heading="steady step time",
            unit="s",
            in_events=True,
        ),
    ] = None
    steady_step_time_iqr_s: Annotated[
        float | None, _column("Interquartile range of the steady steps.", heading="steady IQR", unit="s")
    ] = None
    wall_time_median_s: Annotated[
        float | None,
        _column(
            "Median time from the end of a step to the end of the next, if the trainer logged it.",
            heading="wall time",
            unit="s",
            priority=5,
        ),
    ] = None
    published_step_time_s: Annotated[
        float | None,
        _column(
            "Step time that the recipe's document prints for the same row, scale and batch, if it does.",
            heading="published",
            unit="s",
            priority=4,
        ),
    ] = None
    step_time_over_published: Annotated[
        float | None,
        _column(
            "Mean step time over the published one: above 1 is slower.",
            heading="× published",
            priority=2,
            decimals=3,
            in_events=True,
        ),
    ] = None
    tokens_per_s: Annotated[
        float | None,
        _column("Tokens of a step over its mean time.", heading="tokens/s", priority=2, decimals=2),
    ] = None
    tokens_per_s_per_gpu: Annotated[
        float | None,
        _column("The same for each GPU.", heading="tokens/s/GPU", priority=2, decimals=2, in_events=True),
    ] = None
    mfu_percent: Annotated[
        float | None,
        _column(
            "Model flops utilization by the formula in `flops_formula`.",
            heading="MFU",
            unit="%",
            priority=1,
            significant=3,
            decimals=2,
            in_events=True,
        ),
    ] = None
    model_tflops_per_gpu: Annotated[
        float | None,
        _column(
            "Model flops by the formula in `flops_formula`, over step time and GPUs.",
            heading="model TFLOPS/GPU",
        ),
    ] = None
    tflops_per_gpu_logged: Annotated[
        float | None,
        _column(
            "Mean of the TFLOPS per GPU that the trainer logged in the window.",
            heading="TFLOPS/GPU logged",
            priority=6,
        ),
    ] = None
    tflops_per_gpu_logged_std: Annotated[
        float | None,
        _column(
            "Their sample standard deviation (n - 1); none of a single step.",
            heading="± std of TFLOPS/GPU",
            priority=8,
            significant=2,
        ),
    ] = None
    peak_memory_gib: Annotated[
        float | None,
        _column(
            "Largest GPU memory that a step of the log states.",
            heading="peak memory",
            unit="GiB",
            priority=7,
            significant=3,
            decimals=1,
        ),
    ] = None
    peak_tflops_per_gpu: Annotated[
        float | None,
        _column(
            "Peak that the MFU is relative to; on CPUs measured in the run.",
            heading="peak per GPU",
            unit="TFLOPS",
        ),
    ] = None
    days_per_1t_tokens: Annotated[
        float | None, _column("Time that 10¹² tokens would take.", heading="1T tokens take", unit="days")
    ] = None
    checkpoint_save_s: Annotated[
        float | None,
        _column(
            "The last save, from its start until it was whole on disk.",
            heading="save",
            unit="s",
            priority=3,
            significant=3,
            in_events=True,
        ),
    ] = None
    checkpoint_blocked_s: Annotated[
        float | None,
        _column(
            "How long training waited for that save: less, if it was asynchronous.",
            heading="save blocked",
            unit="s",
            priority=3,
            significant=3,
            in_events=True,
        ),
    ] = None
    checkpoint_load_s: Annotated[
        float | None,
        _column(
            "The last load of a checkpoint.",
            heading="load",
            unit="s",
            priority=3,
            significant=3,
            in_events=True,
        ),
    ] = None
    flops_formula: str | None = None
    flops_per_sample: float | None = None
    flops_source: str | None = None
    """Whether the document states the flops, or its formula gives them."""
    # What is in no store, and in the rows of logs:
    peak_source: Annotated[str | None, _column("The document of the peak, or what measured it.")] = None
