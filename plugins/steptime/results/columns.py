"""The columns of results, each declared once: what it means, how it is taken from a result, how it is shown.

From here follow the table `runs` and its rows, the tables, CSV and JSON of the command line, the page
(`/api/columns`) and the table in `docs/results.md`, which `python -m steptime.results.columns` prints. A new
column is its declaration here, its computation, and a migration of the store.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from steptime.recipes.models import Mode
from steptime.results.metrics import PUBLISHED_THROUGHPUT, against_publication, gpu_hours
from steptime.results.models import Result

SCHEMA_VERSION = 1
"""Of the JSON that commands and the page's server give: raised when a name or a meaning changes."""

Kind = Literal["text", "integer", "number", "boolean", "time"]


@dataclass(frozen=True)
class Column:
    """One column of a listing."""

    name: str
    """With its unit, if it has one: the name in the store, in CSV and in JSON."""
    kind: Kind
    """`time` is Unix time in seconds."""
    description: str
    take: Callable[[Result], Any] | None = None
    """Its value for a result; None for what several runs say together."""
    heading: str = ""
    """What people read above it; by default the name in words."""
    unit: str = ""
    required: bool = False
    """Whether every stored row has a value."""
    choice: bool = False
    """Whether people select runs by its value."""
    priority: int | None = None
    """Tables leave out the highest first if a terminal is too narrow, and never 0; None is in no table."""
    shared: bool = False
    """Whether it moves from the table into its title if all runs have the same value."""
    significant: int = 4
    """Digits that the smallest number of the column keeps in a table."""
    decimals: int = 4
    """Decimals of a table at most."""
    decimals_of: str | None = None
    """The column whose decimals it has instead, so that both can be compared."""
    signed: bool = False
    """Whether a number above 0 has its sign, as a change does."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "heading", self.heading or self.name.replace("_", " "))

    @property
    def title(self) -> str:
        """Heading with unit."""
        return f"{self.heading}, {self.unit}" if self.unit else self.heading

    @property
    def published(self) -> dict[str, Any]:
        """What readers of other languages need of it, as JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "take"}


def _identity(name: str, description: str, **options: Any) -> Column:
    """A column of the row of a recipe document that was run."""
    kind: Kind = "integer" if name == "gpus" else "text"
    take = lambda result: result.run.recipe.identity[name]  # noqa: E731
    return Column(name, kind, description, take, required=True, choice=True, **options)


def _parallel(way: str) -> Column:
    """The column of one of the four ways of parallelism."""
    return Column(
        f"{way}_parallel",
        "integer",
        f"Ranks of {way} parallelism.",
        lambda result: getattr(result.run.recipe.parallelism, way),
        required=True,
    )


def _measured(name: str, unit: str, description: str, **options: Any) -> Column:
    """A column whose value is the measurement's of the same name; None if nothing could be measured."""
    kind: Kind = "integer" if name == "steps_in_window" else "number"
    take = lambda result: None if result.measurement is None else getattr(result.measurement, name)  # noqa: E731
    return Column(name, kind, description, take, unit=unit, **options)


def _queue_wait_s(result: Result) -> float | None:
    started_at = result.status.started_at
    return None if started_at is None else started_at - result.job.submitted_at


def _against_publication(result: Result) -> str | None:
    """Of performance runs alone: a checkpoint's run has few steps, and nobody publishes those."""
    over = result.measurement and result.measurement.step_time_over_published
    return against_publication(over) if over and result.run.mode is Mode.PERFORMANCE else None


def _nodes(result: Result) -> str | None:
    from steptime.results.record import recorded_nodes  # which brings what job scripts are made with

    return ", ".join(recorded_nodes(result.record)) or None


def _gpu_hours(result: Result) -> float | None:
    return gpu_hours(result.run.recipe.gpus, result.status.started_at, result.status.ended_at)


COLUMNS = (
    Column(
        "job_name",
        "text",
        "Name of the job, another one for each attempt: the key of a result.",
        lambda result: result.job.name,
        heading="job",
        required=True,
        priority=0,
    ),
    Column(
        "label",
        "text",
        "The planned run, short: the same for each attempt.",
        lambda result: result.run.label,
        heading="run",
        required=True,
        priority=0,
    ),
    Column(
        "state",
        "text",
        "`valid`, or `rejected` if a check failed.",
        lambda result: "valid" if result.verdict.valid else "rejected",
        required=True,
        choice=True,
        priority=1,
        shared=True,
    ),
    Column("reason", "text", "Why it is rejected.", lambda result: result.verdict.reason),
    Column(
        "warnings",
        "text",
        "What a reader of a valid result should know.",
        lambda result: result.verdict.remarks,
    ),
    _identity("workload", "Recipe document, with its release.", priority=2, shared=True),
    _identity("size", "Size of the model."),
    _identity("dtype", "Number format of the training.", heading="data type"),
    _identity("gpu_type", "Type of GPU, or `cpu`.", heading="GPU type", priority=4, shared=True),
    _identity("scaling", "`weak` or `strong`.", priority=6, shared=True),
    Column(
        "proxy",
        "boolean",
        "Whether the model is a shortened one that stands for a larger.",
        lambda result: result.run.recipe.proxy,
        required=True,
        priority=6,
        shared=True,
    ),
    Column(
        "cluster",
        "text",
        "Cluster that it ran on.",
        lambda result: result.run.cluster,
        required=True,
        choice=True,
        priority=4,
        shared=True,
    ),
    Column(
        "mode",
        "text",
        "`performance`, or what was run for another purpose: a checkpoint, a profile, a trace.",
        lambda result: result.run.mode.value,
        required=True,
        choice=True,
    ),
    Column(
        "repeat",
        "integer",
        "Which of several equal runs of one plan it is, from 1.",
        lambda result: result.run.repeat,
        required=True,
    ),
    _identity("gpus", "GPUs, on CPUs ranks.", heading="GPUs", priority=0),
    *map(_parallel, ("tensor", "pipeline", "context", "data")),
    Column(
        "expert_parallel",
        "integer",
        "Ranks that the experts of a mixture are dealt to, of those that there are; 1 if it has none.",
        lambda result: result.run.recipe.parallelism.expert or 1,
        required=True,
    ),
    Column(
        "global_batch_size",
        "integer",
        "Samples of a step, of all GPUs together.",
        lambda result: result.run.recipe.global_batch_size,
        heading="GBS",
        required=True,
        priority=7,
    ),
    Column(
        "micro_batch_size",
        "integer",
        "Samples that a GPU takes at once.",
        lambda result: result.run.recipe.micro_batch_size,
        heading="MBS",
        required=True,
        priority=7,
        shared=True,
    ),
    Column(
        "window",
        "text",
        "First and last global step that are averaged.",
        lambda result: str(result.run.window),
        unit="steps",
        required=True,
        priority=5,
        shared=True,
    ),
    _measured("steps_in_window", "", "Steps of the window that have a step time."),
    _measured("step_time_mean_s", "s", "Mean step time of the window.", heading="step time", priority=0),
    _measured(
        "step_time_std_s",
        "s",
        "Sample standard deviation of the step times (n - 1); none of a single step.",
        heading="± std",
        priority=3,
        decimals_of="step_time_mean_s",
    ),
    _measured("step_time_median_s", "s", "Median step time of the window.", heading="median step time"),
    Column(
        "steady_steps",
        "text",
        "First and last of the steady steps: the last 20 of the run, or its window where that is longer.",
        lambda result: None if result.measurement is None else result.measurement.steady_steps,
        heading="steady",
        unit="steps",
    ),
    _measured(
        "steady_step_time_s",
        "s",
        "Median step time of the steady steps: what a run is judged by.",
        heading="steady step time",
    ),
    _measured(
        "steady_step_time_iqr_s", "s", "Interquartile range of the steady steps.", heading="steady IQR"
    ),
    _measured(
        "wall_time_median_s",
        "s",
        "Median time from the end of a step to the end of the next, if the trainer logged it.",
        heading="wall time",
        priority=5,
    ),
    _measured(
        "published_step_time_s",
        "s",
        "Step time that the recipe's document prints for the same row, scale and batch, if it does.",
        heading="published",
        priority=4,
    ),
    _measured(
        "step_time_over_published",
        "",
        "Mean step time over the published one: above 1 is slower.",
        heading="× published",
        priority=2,
        decimals=3,
    ),
    Column(
        "against_publication",
        "text",
        f"`passes` from {100 * PUBLISHED_THROUGHPUT:g} % of the published throughput on, else `below`.",
        _against_publication,
        heading="publication",
        priority=3,
    ),
    _measured(
        "tokens_per_s", "", "Tokens of a step over its mean time.", heading="tokens/s", priority=2, decimals=2
    ),
    _measured(
        "tokens_per_s_per_gpu",
        "",
        "The same for each GPU.",
        heading="tokens/s/GPU",
        priority=1,
        decimals=2,
    ),
    Column(
        "scaling_efficiency_percent",
        "number",
        "Tokens/s per GPU relative to the smallest scale of the same sweep run or DAG run, else of the "
        "nearest earlier runs.",
        heading="efficiency",
        unit="%",
        priority=2,
        significant=3,
        decimals=1,
    ),
    *(
        Column(
            f"scaling_efficiency_{end}_percent",
            "number",
            f"{words} end of a 95 % interval of the mean of its scale's jobs; none below 3 of both scales.",
            heading=f"scale mean {preposition}",
            unit="%",
            priority=8,
            significant=3,
            decimals=1,
        )
        for end, words, preposition in (("low", "Lower", "from"), ("high", "Upper", "to"))
    ),
    Column(
        "scaling_base_gpus",
        "integer",
        "That smallest scale, in GPUs.",
        heading="efficiency relative to",
        unit="GPU",
        priority=8,
        shared=True,
    ),
    Column("scaling_base_jobs", "text", "The jobs of that scale, whose mean it is relative to."),
    _measured(
        "mfu_percent",
        "%",
        "Model flops utilization by the formula in `flops_formula`.",
        heading="MFU",
        priority=1,
        significant=3,
        decimals=2,
    ),
    Column(
        "flops_formula",
        "text",
        "Formula of the model flops: only MFUs of one formula may be compared.",
        lambda result: result.run.recipe.flops_formula,
        heading="MFU formula",
        required=True,
        priority=8,
        shared=True,
    ),
    _measured(
        "peak_tflops_per_gpu",
        "TFLOPS",
        "Peak that the MFU is relative to; on CPUs measured in the run.",
        heading="peak per GPU",
    ),
    _measured("days_per_1t_tokens", "days", "Time that 10¹² tokens would take.", heading="1T tokens take"),
    _measured(
        "checkpoint_save_s",
        "s",
        "The last save, from its start until it was whole on disk.",
        heading="save",
        priority=3,
        significant=3,
    ),
    _measured(
        "checkpoint_blocked_s",
        "s",
        "How long training waited for that save: less, if it was asynchronous.",
        heading="save blocked",
        priority=3,
        significant=3,
    ),
    _measured(
        "checkpoint_load_s",
        "s",
        "The last load of a checkpoint.",
        heading="load",
        priority=3,
        significant=3,
    ),
    Column(
        "gpu_hours",
        "number",
        "GPU-hours of the job, from its start to its end.",
        _gpu_hours,
        heading="GPU-hours",
        priority=5,
        significant=3,
    ),
    Column(
        "submitted_at",
        "time",
        "When the job was submitted.",
        lambda result: result.job.submitted_at,
        heading="submitted",
        required=True,
        priority=6,
    ),
    Column(
        "started_at",
        "time",
        "When the cluster started the job.",
        lambda result: result.status.started_at,
        heading="started",
    ),
    Column("ended_at", "time", "When the job ended.", lambda result: result.status.ended_at, heading="ended"),
    Column(
        "queue_wait_s",
        "number",
        "From submitted to started.",
        _queue_wait_s,
        heading="queued",
        unit="s",
        priority=6,
        significant=3,
    ),
    Column("nodes", "text", "Nodes that it ran on, in the order of its ranks.", _nodes),
    Column("dag_id", "text", "Airflow DAG that ran it.", lambda result: result.submitted.made_by.dag_id),
    Column("dag_run_id", "text", "Run of that DAG.", lambda result: result.submitted.made_by.dag_run_id),
    Column(
        "task_id",
        "text",
        "Task that waited for the job: its log shows the training's step lines.",
        lambda result: result.submitted.made_by.task_id,
    ),
    Column(
        "map_index",
        "integer",
        "Which of the DAG's mapped runs it is.",
        lambda result: result.submitted.made_by.map_index,
    ),
    Column(
        "sweep",
        "text",
        "Sweep that it is a cell of.",
        lambda result: result.submitted.made_by.sweep,
        choice=True,
    ),
    Column(
        "sweep_run",
        "text",
        "DAG run of that sweep, `dag_id/run_id`.",
        lambda result: result.submitted.made_by.sweep_run,
    ),
    Column(
        "log_path", "text", "The training log on its cluster.", lambda result: result.log.path, required=True
    ),
    Column("published_at", "time", "When this row was written.", lambda _: time.time(), required=True),
)
"""All columns in the order of CSV, JSON and documentation."""

COMPUTED = tuple(column.name for column in COLUMNS if column.take is None)
"""What the store computes of several runs, see `results.efficiency`."""

CHOICES = tuple(column.name for column in COLUMNS if column.choice)
"""Columns by whose values people select runs."""

BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}


def documentation() -> str:
    """The table of all columns in `docs/results.md`."""
    lines = [
        f"| `{column.name}` | {column.kind} | {column.unit or '-'} | {column.description} |"
        for column in COLUMNS
    ]
    return "\n".join(("| column | type | unit | what |", "|---|---|---|---|", *lines))


if __name__ == "__main__":
    print(documentation())
