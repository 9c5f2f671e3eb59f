"""The numbers in NVIDIA's publications of recipes: performance tables and constants.

`config/references/` holds the numbers as printed, one YAML file for each publication. `configurations.csv`
beside them has the rows of all configuration tables, to compare workloads with.
"""

import functools
from pathlib import Path
from typing import Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from steptime import settings
from steptime.errors import unknown_value
from steptime.frozen import Frozen
from steptime.recipes.config_files import file_state, load_yaml_model
from steptime.recipes.models import Recipe

PUBLISHED_THROUGHPUT = 0.95
"""Least throughput that passes, relative to the published one."""


class PerformanceRow(Frozen):
    """The published performance of one configuration on one number of GPUs.

    A number that the publication does not print, or prints as n/a, is None.
    """

    document: str
    size: str
    dtype: str
    gpu_type: str
    gpus: PositiveInt
    seq_length: PositiveInt
    global_batch_size: PositiveInt
    step_time_s: PositiveFloat | None = None
    tokens_per_s: PositiveInt | None = None
    tokens_per_s_per_gpu: PositiveInt | None = None
    tflops_per_gpu: PositiveFloat | None = None
    mfu_percent: PositiveFloat | None = None
    days_per_1t_tokens: PositiveFloat | None = None

    @property
    def step_time(self) -> float | None:
        """The step time in seconds, printed or derived from printed tokens per second and GPU, or None."""
        if self.step_time_s is not None or self.tokens_per_s_per_gpu is None:
            return self.step_time_s
        return self.seq_length * self.global_batch_size / (self.tokens_per_s_per_gpu * self.gpus)


class Decimals(Frozen):
    """With how many decimals a publication prints each number; tokens per second have none."""

    tflops_per_gpu: NonNegativeInt = 2
    mfu_percent: NonNegativeInt = 2
    days_per_1t_tokens: NonNegativeInt = 2


class AsPublished(Frozen):
    """Constants that reproduce the MFU printed in a publication, if those printed there do not."""

    peak_tflops: dict[str, dict[str, PositiveFloat]] = Field(default_factory=dict)
    """Peak TFLOPS by GPU type and dtype."""
    model_flops: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Operations per sample, by size."""
    num_query_groups: dict[str, PositiveInt] = Field(default_factory=dict)
    """Number of query groups by size, which the publication's formula uses in place of the model's own."""


class PerformanceTable(Frozen):
    """A published performance table: each line is a list with one entry per number of GPUs.

    Numbers that a publication only states in its text form a table with a single entry per line.
    """

    size: str
    dtype: str
    gpu_type: str
    seq_length: PositiveInt
    gpus: tuple[PositiveInt, ...]
    global_batch_size: tuple[PositiveInt, ...] = Field(min_length=1)
    step_time_s: tuple[PositiveFloat | None, ...] = ()
    tokens_per_s: tuple[PositiveInt | None, ...] = ()
    tokens_per_s_per_gpu: tuple[PositiveInt | None, ...] = ()
    tflops_per_gpu: tuple[PositiveFloat | None, ...] = ()
    mfu_percent: tuple[PositiveFloat | None, ...] = ()
    days_per_1t_tokens: tuple[PositiveFloat | None, ...] = ()

    @model_validator(mode="after")
    def _one_entry_a_scale(self) -> Self:
        lines = {
            name: getattr(self, name) for name in ("global_batch_size", *_NUMBERS) if getattr(self, name)
        }
        for name, line in lines.items():
            if len(line) != len(self.gpus):
                raise ValueError(f"{name} has {len(line)} entries for {len(self.gpus)} GPU counts")
        if lines.keys() == {"global_batch_size"}:
            raise ValueError(f"the table has no numbers: give one of {', '.join(_NUMBERS)}")
        return self


_NUMBERS = (
    *("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu"),
    *("tflops_per_gpu", "mfu_percent", "days_per_1t_tokens"),
)


class Reference(Frozen):
    """The numbers that one publication prints: `config/references/<document>.yaml`."""

    document: str
    title: str
    step_time: str
    """In words, the steps over which the printed step times are averaged, such as `the last of 50 steps`."""
    stated_model_flops: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Model FLOPs per sample by size, rounded as in the document; the MFU of runs is computed from these."""
    as_published: AsPublished = AsPublished()
    logged_tflops_are_invalid: bool = False
    """Whether the document says that its recipe logs wrong TFLOPS per GPU."""
    decimals: Decimals = Decimals()
    tables: tuple[PerformanceTable, ...]

    @property
    def rows(self) -> tuple[PerformanceRow, ...]:
        """The numbers of all tables as rows, one for each configuration and number of GPUs."""
        return tuple(
            PerformanceRow(
                document=self.document,
                size=table.size,
                dtype=table.dtype,
                gpu_type=table.gpu_type,
                seq_length=table.seq_length,
                gpus=gpus,
                global_batch_size=table.global_batch_size[index],
                **{name: getattr(table, name)[index] for name in _NUMBERS if getattr(table, name)},
            )
            for table in self.tables
            for index, gpus in enumerate(table.gpus)
        )


def list_references() -> tuple[str, ...]:
    """List the workloads whose published numbers are in `config/references/`."""
    return settings.config_names("references")


def load_reference(document: str) -> Reference:
    """Load the published numbers of a workload such as `llama3.1-25.04`.

    Raises UserError if they are missing or broken.
    """
    if document not in list_references():
        raise unknown_value("reference document", document, list_references())
    path = settings.config_file(f"references/{document}.yaml")
    return _load(path, file_state(path))


@functools.lru_cache(maxsize=64)
def _load(path: Path, _state: tuple[int, int]) -> Reference:
    """Load one file; it is read again only when it changes, as a sweep needs it for each run."""
    return load_yaml_model(path, Reference, named_in="document")


def published_performance(recipe: Recipe) -> PerformanceRow | None:
    """Return the published performance of a recipe; None if none is published for its GPU count and batch."""
    if recipe.workload not in list_references():
        return None
    for row in load_reference(recipe.workload).rows:
        if (row.size, row.dtype, row.gpu_type, row.gpus, row.seq_length, row.global_batch_size) == (
            recipe.size,
            recipe.dtype,
            recipe.gpu_type,
            recipe.gpus,
            recipe.model.seq_length,
            recipe.global_batch_size,
        ):
            return row
    return None
