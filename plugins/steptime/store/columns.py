"""The columns of results, each declared once: its meaning, its type and how it is shown.

The table `runs`, the tables, CSV and JSON of the command line, and the web pages (`/api/columns`) are derived
from these declarations. `measure.column_values` computes the values of a measured run: a new column needs a
declaration here and a computation there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from steptime.recipes.models import Run
from steptime.recipes.published import PUBLISHED_THROUGHPUT
from steptime.store.run_models import Measurement

Row = Mapping[str, Any]
"""A run of the store, as values by column name."""

SCHEMA_VERSION = 1
"""Version of the JSON from commands and the page's server; raised when a name or a meaning changes."""

Kind = Literal["text", "integer", "number", "boolean", "time"]
Part = Literal["model", "variant", "mode", "scale", "spread"]
"""Parts of a series' identity: the model, the variant of its recipe with the cluster, the mode, the number of
GPUs, and the parallelism."""


@dataclass(frozen=True)
class Column:
    """A column of a table of results or comparisons."""

    name: str
    """Name in the store, in CSV and in JSON; it ends with the unit, if there is one."""
    kind: Kind
    """`time` is Unix time in seconds."""
    description: str
    of_run: Callable[[Run], Any] | None = None
    """Computes the value for a planned run; None if the plan does not have it."""
    heading: str = ""
    """Heading for people; by default the name in words."""
    unit: str = ""
    required: bool = False
    """Whether every stored row has a value."""
    choice: bool = False
    """Whether people filter runs by its value."""
    series: Part | None = None
    """Which part of a series' identity it is; None if comparable runs may differ in it."""
    element: str = ""
    """Name of one of its values if it lists several, joined by `, `: people filter runs by one of them."""
    searched: bool = False
    """Whether a text search looks at it."""
    in_events: bool = False
    """Whether the events of Airflow's assets include it."""
    priority: int | None = None
    """On a narrow terminal, tables drop columns with the highest priority first and never those with 0. None:
    never in a table."""
    shared: bool = False
    """Whether it moves from the table to the title if all runs have the same value."""
    significant: int = 4
    """Significant digits that a table shows of the smallest number in the column."""
    decimals: int = 4
    """Most decimals that a table shows."""
    decimals_of: str | None = None
    """Another column whose number of decimals it uses, so that the two can be compared."""
    as_change: bool = False
    """Whether tables write it, a ratio of times, as a change: `3.3 % faster`."""
    signed: bool = False
    """Whether numbers above 0 are written with a plus sign."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "heading", self.heading or self.name.replace("_", " "))

    @property
    def title(self) -> str:
        """The heading with the unit, as in `step time, s`."""
        return f"{self.heading}, {self.unit}" if self.unit else self.heading

    @property
    def published(self) -> dict[str, Any]:
        """The declaration of the column as JSON, without the function `of_run`."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "of_run"}


def _planned(name: str, kind: Kind, description: str, of_run: Callable[[Run], Any], **options: Any) -> Column:
    """Declare a column whose value the plan has."""
    return Column(name, kind, description, of_run, required=True, **options)


def _identity(name: str, description: str, **options: Any) -> Column:
    """Declare a column that identifies the recipe of a run."""
    kind: Kind = "integer" if name == "gpus" else "text"
    of_run = lambda run: run.recipe.identity[name]  # noqa: E731
    return _planned(name, kind, description, of_run, choice=True, **options)


def _parallel(way: str) -> Column:
    """Declare the column of one kind of parallelism that every recipe has."""
    of_run = lambda run: getattr(run.recipe.parallelism, way)  # noqa: E731
    return _planned(f"{way}_parallel", "integer", f"Ranks of {way} parallelism.", of_run, series="spread")


def _measurement_column(name: str, annotation: Any, declared: Mapping[str, Any]) -> Column:
    """Declare a column for a field of `Measurement`."""
    kinds: dict[Any, Kind] = {int: "integer", float: "number", str: "text"}
    kind = next(kinds[type_] for type_ in (annotation, *get_args(annotation)) if type_ in kinds)
    return Column(name, kind, **declared)


MEASURED: Mapping[str, Column] = {
    name: _measurement_column(name, field.annotation, declared)
    for name, field in Measurement.model_fields.items()
    for declared in field.metadata
}
"""The columns that are declared as fields of `Measurement`; `COLUMNS` has all of them."""


def _measured(after: str | None = None, to: str | None = None) -> tuple[Column, ...]:
    """Return the columns declared in `Measurement`: those after one field, up to and including another."""
    names = list(MEASURED)
    first = 0 if after is None else names.index(after) + 1
    last = len(names) if to is None else names.index(to) + 1
    return tuple(MEASURED[name] for name in names[first:last])


_SCALING = (
    Column(
        "scaling_efficiency_percent",
        "number",
        "Tokens/s per GPU relative to the runs on the fewest GPUs in the same sweep run or DAG run, else "
        "among the nearest earlier runs.",
        heading="efficiency",
        unit="%",
        priority=2,
        decimals=1,
    ),
    *(
        Column(
            f"scaling_efficiency_{end}_percent",
            "number",
            f"{words} end of a 95 % interval of the efficiency; empty below 3 jobs at either GPU count.",
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
        "GPU count of the runs to which the efficiency is relative.",
        heading="efficiency relative to",
        unit="GPU",
        priority=8,
        shared=True,
    ),
    Column("scaling_base_jobs", "text", "Jobs to whose mean the efficiency is relative."),
)
"""Columns that `store.efficiency` computes from several runs."""

COLUMNS = (
    Column(
        "job_name",
        "text",
        "Name of the job, a new one for each attempt: the key of a result.",
        heading="job",
        required=True,
        priority=0,
        searched=True,
        in_events=True,
    ),
    _planned(
        "label",
        "text",
        "Short name of the planned run, the same for each attempt.",
        lambda run: run.label,
        heading="run",
        priority=0,
        searched=True,
        in_events=True,
    ),
    Column(
        "state",
        "text",
        "`valid`, or `rejected` if a check failed.",
        required=True,
        choice=True,
        priority=1,
        shared=True,
        searched=True,
        in_events=True,
    ),
    Column("reason", "text", "Why the run was rejected.", searched=True),
    Column(
        "warnings",
        "text",
        "Warnings of checks about a valid run.",
        searched=True,
    ),
    _identity(
        "workload",
        "Model family and release of the published recipe.",
        priority=2,
        shared=True,
        series="model",
        searched=True,
        in_events=True,
    ),
    _identity("size", "Size of the model.", series="model"),
    _identity("dtype", "Number format of the training.", heading="data type", series="variant"),
    _identity(
        "gpu_type",
        "Type of GPU, or `cpu`.",
        heading="GPU type",
        priority=4,
        shared=True,
        series="variant",
        searched=True,
    ),
    _identity("scaling", "`weak` or `strong`.", priority=6, shared=True, series="variant"),
    _planned(
        "proxy",
        "boolean",
        "Whether the model is a proxy: a larger model with fewer layers.",
        lambda run: run.recipe.proxy,
        priority=6,
        shared=True,
        series="variant",
    ),
    _planned(
        "tuning",
        "text",
        "Options that replace the published ones, such as `tp4 mbs2`. Such runs are judged apart.",
        lambda run: run.tuning,
        priority=5,
        shared=True,
        series="variant",
        searched=True,
    ),
    _planned(
        "cluster",
        "text",
        "Cluster that it ran on.",
        lambda run: run.cluster,
        choice=True,
        priority=4,
        shared=True,
        series="variant",
        searched=True,
        in_events=True,
    ),
    _planned(
        "mode",
        "text",
        "`performance`, or what was run for another purpose: a checkpoint, a profile, a trace.",
        lambda run: run.mode.value,
        choice=True,
        series="mode",
        in_events=True,
    ),
    _planned(
        "for_judging",
        "boolean",
        "Whether it counts when runs are judged; false in trials, and for imports that are only shown.",
        lambda run: run.for_judging and run.trial is None,
        series="mode",
    ),
    _planned(
        "repeat",
        "integer",
        "Number of the run among equal runs of one plan, from 1.",
        lambda run: run.repeat,
    ),
    _identity(
        "gpus",
        "Number of GPUs; on CPUs, of ranks.",
        heading="GPUs",
        priority=0,
        series="scale",
        in_events=True,
    ),
    *map(_parallel, ("tensor", "pipeline", "context", "data")),
    _planned(
        "expert_parallel",
        "integer",
        "Ranks of expert parallelism; 1 for models without experts.",
        lambda run: run.recipe.parallelism.expert or 1,
        series="spread",
    ),
    _planned(
        "global_batch_size",
        "integer",
        "Samples of a step on all GPUs.",
        lambda run: run.recipe.global_batch_size,
        heading="GBS",
        priority=7,
    ),
    _planned(
        "micro_batch_size",
        "integer",
        "Samples that a GPU processes at once.",
        lambda run: run.recipe.micro_batch_size,
        heading="MBS",
        priority=7,
        shared=True,
    ),
    _planned(
        "window",
        "text",
        "First and last global step that are averaged.",
        lambda run: str(run.window),
        unit="steps",
        priority=5,
        shared=True,
    ),
    *_measured(to="step_time_over_published"),
    Column(
        "against_publication",
        "text",
        f"`passes` from {100 * PUBLISHED_THROUGHPUT:g} % of the published throughput on, else `below`.",
        heading="publication",
        priority=3,
        in_events=True,
    ),
    *_measured(after="step_time_over_published", to="tokens_per_s_per_gpu"),
    *_SCALING,
    *_measured(after="tokens_per_s_per_gpu", to="mfu_percent"),
    _planned(
        "flops_formula",
        "text",
        "Formula of the model flops: only MFUs of one formula may be compared.",
        lambda run: run.recipe.flops_formula,
        heading="MFU formula",
        priority=8,
        shared=True,
    ),
    *_measured(after="mfu_percent"),
    Column(
        "gpu_hours",
        "number",
        "GPU-hours of the job, from its start to its end.",
        heading="GPU-hours",
        priority=5,
        significant=3,
        in_events=True,
    ),
    Column(
        "price_per_million_tokens",
        "number",
        "By the mean step time and the `price_per_gpu_hour` of the cluster's file; empty without one.",
    ),
    Column(
        "goodput_percent",
        "number",
        "Time in training steps, of that from the job's start to its end.",
        heading="goodput",
        unit="%",
        significant=3,
        decimals=1,
    ),
    Column(
        "in_steps_s",
        "number",
        "Time in training steps; first ones count as long as a steady step.",
        heading="in training steps",
        unit="s",
    ),
    Column(
        "first_steps_s",
        "number",
        "What the steps before the window took longer than steady ones: compilation and warm-up.",
        heading="longer first steps",
        unit="s",
    ),
    Column(
        "in_checkpoints_s",
        "number",
        "How long training waited for checkpoints, saved and loaded.",
        heading="waited for checkpoints",
        unit="s",
    ),
    Column(
        "submitted_at",
        "time",
        "When the job was submitted.",
        heading="submitted",
        required=True,
        priority=1,
    ),
    Column(
        "started_at",
        "time",
        "When the cluster started the job.",
        heading="started",
    ),
    Column("ended_at", "time", "When the job ended.", heading="ended"),
    Column(
        "queue_wait_s",
        "number",
        "Time from submission to start.",
        heading="queued",
        unit="s",
        priority=6,
        significant=3,
        decimals=0,
    ),
    Column("image", "text", "Name of the container image.", choice=True, searched=True),
    Column("image_digest", "text", "`sha256:…` of the image in its registry, if the import reported it."),
    Column(
        "nvidia_driver",
        "text",
        "Version of the NVIDIA driver, as the training recorded it.",
        heading="NVIDIA driver",
        choice=True,
        searched=True,
    ),
    Column(
        "nccl",
        "text",
        "Version of NCCL, as the training recorded it.",
        heading="NCCL",
        choice=True,
        searched=True,
    ),
    Column(
        "versions",
        "text",
        "Versions of libraries and drivers, as the training recorded them: `nemo 2.7.3, torch 2.8.0`.",
        element="version",
        searched=True,
    ),
    Column(
        "variables",
        "text",
        "Environment variables that the job script set: `NCCL_ALGO=Ring, NVTE_FUSED_ATTN=1`.",
        element="variable",
        searched=True,
    ),
    Column("steptime_version", "text", "Version of steptime that submitted it.", heading="steptime"),
    Column("git_commit", "text", "Commit of the steptime checkout that submitted it.", heading="commit"),
    Column(
        "trainer_sha256",
        "text",
        "Hash of the trainer's code; the same code has the same hash.",
        heading="trainer",
    ),
    Column(
        "nodes",
        "text",
        "Nodes that it ran on, in the order of its ranks.",
        element="node",
        searched=True,
    ),
    Column(
        "network",
        "text",
        "What NCCL chose to connect the ranks by, as it printed at its start: `IB, 8 rails, NVLS`.",
        searched=True,
    ),
    Column(
        "stragglers",
        "text",
        "Nodes and ranks that stand apart from the others: slower in the forward pass (with a 95 % "
        "interval), hotter, with lower clocks, or with errors of GPUs or links.",
        in_events=True,
    ),
    Column(
        "dag_id",
        "text",
        "Airflow DAG that ran it.",
        searched=True,
        in_events=True,
    ),
    Column(
        "dag_run_id",
        "text",
        "Run of that DAG.",
        searched=True,
        in_events=True,
    ),
    Column(
        "task_id",
        "text",
        "Task that waited for the job: its log shows the training's step lines.",
    ),
    Column(
        "map_index",
        "integer",
        "Index of the mapped tasks that ran it.",
    ),
    Column(
        "sweep",
        "text",
        "Sweep that ran it.",
        choice=True,
        in_events=True,
    ),
    Column(
        "trial",
        "text",
        "Trial that ran it; `repeat` is the round. Such runs are not judged.",
        lambda run: None if run.trial is None else run.trial.rules.trial,
        choice=True,
    ),
    Column(
        "variant",
        "text",
        "Variant of the trial that it is.",
        lambda run: None if run.trial is None else run.trial.variant,
        choice=True,
    ),
    Column("log_path", "text", "The training log on its cluster.", required=True),
    Column(
        "origin",
        "text",
        "Archive, folder or log that the run was imported from.",
        searched=True,
    ),
    Column("published_at", "time", "When the run was published or rejected."),
)
"""All columns, in the order of CSV, JSON and documentation."""

COMPUTED = tuple(column.name for column in _SCALING)
"""Names of the columns that are computed from several runs, see `store.efficiency`."""

CHOICES = tuple(column.name for column in COLUMNS if column.choice)
"""Names of the columns that people filter runs by."""

ELEMENTS: Mapping[str, str] = {column.element: column.name for column in COLUMNS if column.element}
"""Filters on one of the values that a column lists: `node` of `nodes`, `variable` of `variables`."""


def series_columns(*parts: Part) -> tuple[str, ...]:
    """Return the names of the columns that identify a series of runs; `parts` selects some groups of them."""
    return tuple(
        column.name for column in COLUMNS if column.series and column.series in (parts or get_args(Part))
    )


BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}


def planned_values(run: Run) -> dict[str, Any]:
    """Return the values, by column, that a run's plan already determines."""
    return {column.name: column.of_run(run) for column in COLUMNS if column.of_run}
