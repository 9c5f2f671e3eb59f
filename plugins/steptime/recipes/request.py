"""A request for runs, from flags, DAG params or JSON, before it is checked against a recipe.

Each option is declared here, or in the folder of its kind of cluster, and nowhere else: the trigger form, the
flags of the command line and the fields of sweeps follow from `option_fields`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError, model_serializer, model_validator
from pydantic.fields import FieldInfo

from steptime.errors import UserError, one_line, unknown_value
from steptime.frozen import Frozen
from steptime.recipes.models import Mode, NamedRecipe, OptionValue, Recipe
from steptime.recipes.notation import NUMBERS_PATTERN, TIME_LIMIT_PATTERN, WINDOW_PATTERN
from steptime.recipes.options import declaration, option, options_of_kinds
from steptime.refusals import describe_validation_error
from steptime.settings import default_cluster

DICTIONARIES = MappingProxyType({"environment": "--env", "arguments": "--arg"})
"""Options with several named values, and the flag that sets one of them."""

_MARKED = re.compile(r"`([a-z_]+)`")


def marked(option: str) -> str:
    """Return an option's name as errors contain it, for `options_in_words`."""
    return f"`{option}`"


@contextmanager
def options_in_words(words: Callable[[str], str]) -> Iterator[None]:
    """Write the options that a UserError names in an interface's own words.

    `words` returns them for an option's name: a flag, or the title of a field. Without this, as in sweeps and
    JSON, an error has the names themselves, in backticks.
    """
    try:
        yield
    except UserError as error:
        text = _MARKED.sub(lambda name: words(name[1]) if name[1] in option_fields() else name[0], str(error))
        error.args = (text, *error.args[1:])
        raise


def _not_by_name(name: str, _: Any, recipe: Recipe) -> None:
    if isinstance(recipe.model, NamedRecipe):
        raise UserError(
            f"{marked(name)} of {recipe.workload} {recipe.size} on {recipe.gpu_type} is set by its "
            "recipe in Megatron-Bridge: leave it out."
        )


def _on_gpus(name: str, _: Any, recipe: Recipe) -> None:
    if recipe.gpu_type == "cpu":
        raise UserError(
            f"{marked(name)} is for GPUs, and {recipe.workload} {recipe.size} on cpu has none: leave it out."
        )


def _with_tensor_parallelism(name: str, value: Any, recipe: Recipe) -> None:
    if value and recipe.parallelism.tensor == 1:
        raise UserError(
            f"{marked(name)} needs tensor parallelism, and {recipe.workload} {recipe.size} on "
            f"{recipe.gpu_type} on {recipe.gpus} GPUs has none: leave it out."
        )


class PlanRequest(Frozen):
    """A request for runs. An option that is None has the default that its description names.

    In JSON, options that only one kind of cluster has are on the same level as all others.
    """

    workload: str = Field(
        description="Workload, with its release (llama3.1-25.04), or its family alone (llama3.1).",
        examples=["llama3.1", "nemotron4-340b-24.11"],
    )
    # The form and `--help` keep this order. The cluster comes first: it decides which others can be run.
    cluster: str = option(
        "Where",
        "Where to run: a file of config/clusters.",
        default_factory=default_cluster,
        examples=["local"],
    )
    size: str | None = option(
        "Model",
        "Model size; by default tiny on a cluster without GPUs, else the recipe's default.",
        examples=["tiny", "8b", "405b"],
    )
    dtype: str | None = option(
        "Model",
        "Number format; by default the recipe's, or the only one of the size.",
        examples=["bf16", "fp8"],
    )
    proxy: bool = option(
        "Model",
        "The proxy of the size, for small clusters: the same layers, but fewer (405b has one).",
        default=False,
    )
    gpu_type: str | None = option(
        "Scale", "Type of GPU; by default the cluster's.", examples=["h100", "gb200", "cpu"]
    )
    gpus: str | None = option(
        "Scale",
        "GPU counts: a list with commas, or FIRST-LAST for the published ones in that range; by default the "
        "size's own.",
        pattern=NUMBERS_PATTERN,
    )
    scaling: str = option(
        "Scale",
        "weak: the global batch size grows with the GPUs; strong: it stays.",
        default="weak",
        examples=["weak", "strong"],
    )
    repeats: int = option(
        "Scale", "How many times to run each configuration.", default=1, ge=1, le=100, examples=[3]
    )
    max_steps: int | None = option("Run", "Training steps; by default the recipe's.", ge=1, le=1_000_000)
    window: str | None = option(
        "Run",
        "Global steps to average, FIRST:LAST, both included; by default the recipe's.",
        pattern=WINDOW_PATTERN,
    )
    time_limit: str | None = option(
        "Run",
        "Time after which the cluster ends a job, HH:MM:SS; by default the recipe's.",
        pattern=TIME_LIMIT_PATTERN,
    )
    ignore_memory: bool = option(
        "Run",
        "Plan a run even if the estimate says that its model does not fit into the GPUs.",
        default=False,
    )
    checkpoint: bool = option(
        "Run",
        "Also save a checkpoint, load it in a second job, and time both: on the largest of the GPU counts.",
        default=False,
    )
    save_checkpoint: bool = option(
        "Run", "Only save a checkpoint at the end of each run, and time it.", default=False
    )
    keep_checkpoint: bool = option(
        "Run",
        "Keep what checkpoint has saved; by default it is removed from the cluster once its load is valid.",
        only_in=Mode.CHECKPOINT_SAVE,
        default=False,
    )
    load_checkpoint: str | None = option(
        "Run",
        "Only load the checkpoint in this folder of the cluster (above weights/), time it, and train one "
        "step. Loading can run code that is in a checkpoint: name only one that you trust.",
        needs="With one number of GPUs",
        examples=["/shared/checkpoints/default--None=0.0000-epoch=0-consumed_samples=12800.0"],
    )
    async_save: bool | None = option(
        "Run",
        "Training waits only for a copy in memory, and another process writes the checkpoint; by default on "
        "GPUs, as upstream.",
        needs="With checkpoint or save_checkpoint",
        sets_trainer=True,
        only_in=Mode.CHECKPOINT_SAVE,
        default_of=lambda recipe: recipe.gpu_type != "cpu",
    )
    profile: bool = option(
        "Profile and trace",
        "Run under a profiler instead: Nsight Systems on GPUs that have it, else torch's. Its times are not "
        "for comparison.",
        default=False,
    )
    profile_start: int | None = option(
        "Profile and trace",
        "Step at which profiling starts; by default the recipe's.",
        only_in=Mode.PROFILE,
        ge=0,
        le=1_000_000,
    )
    profile_stop: int | None = option(
        "Profile and trace",
        "Step at which profiling stops; by default the recipe's.",
        only_in=Mode.PROFILE,
        ge=1,
        le=1_000_000,
    )
    profile_ranks: str | None = option(
        "Profile and trace",
        "Ranks to profile; by default the recipe's.",
        only_in=Mode.PROFILE,
        needs="With profile",
        pattern=NUMBERS_PATTERN,
        examples=["0"],
    )
    gpu_metrics: bool = option(
        "Profile and trace",
        "Sample the GPUs' hardware counters in the profile, too; the cluster must allow it.",
        only_in=Mode.PROFILE,
        default=False,
    )
    nccl_trace: bool = option(
        "Profile and trace",
        "Run a few steps and log every call of NCCL instead (of gloo's collectives on the CPU). Not together "
        "with profile.",
        default=False,
    )
    gpu_samples: bool | None = option(
        "Profile and trace",
        "Sample power, clocks, temperature and errors of each GPU once per second, in a process beside the "
        "ranks, or not; by default on GPUs. steptime's trainer does it, with NeMo 2.",
        needs="With steptime's trainer",
        checks=(_not_by_name,),
        sets_trainer=True,
        default_of=lambda recipe: recipe.gpu_type != "cpu",
    )
    tensor_parallel: int | None = option(
        "Tuning",
        "Tensor parallelism, instead of the recipe's. With any of these options a run is tuned: it has its "
        "own history and verdicts.",
        ge=1,
    )
    pipeline_parallel: int | None = option(
        "Tuning", "Pipeline parallelism, instead of the recipe's; its stages are not divided further.", ge=1
    )
    context_parallel: int | None = option("Tuning", "Context parallelism, instead of the recipe's.", ge=1)
    expert_parallel: int | None = option("Tuning", "Expert parallelism, instead of the recipe's.", ge=1)
    micro_batch_size: int | None = option("Tuning", "Micro batch size, instead of the recipe's.", ge=1)
    global_batch_size: int | None = option("Tuning", "Global batch size, instead of the recipe's.", ge=1)
    arguments: dict[str, str] = option(
        "Tuning",
        "Further arguments of the script of Megatron-Bridge, by their names without dashes.",
        default_factory=dict,
        needs="With a recipe of Megatron-Bridge",
        examples=[{"recompute_num_layers": "1"}],
    )
    image: str | None = option(
        "Machines",
        "Another container image than the recipe's; the cluster must run containers.",
        needs="On a cluster that runs containers",
        examples=["nvcr.io/nvidia/nemo:25.04.01"],
    )
    cuda_graphs: bool | None = option(
        "Machines",
        "Record steps as CUDA graphs, or not; by default as the recipe does.",
        needs="On GPUs",
        checks=(_not_by_name, _on_gpus),
        sets_trainer=True,
    )
    tp_comm_overlap: bool | None = option(
        "Machines",
        "Overlap tensor-parallel communication with matrix products; by default as the recipe does. Off "
        "helps against time-outs on GB200, according to NVIDIA's published recipes.",
        needs="On GPUs, with tensor parallelism",
        checks=(_not_by_name, _on_gpus, _with_tensor_parallelism),
        sets_trainer=True,
    )
    environment: dict[str, str] = option(
        "Machines",
        "Environment variables of the training processes. Not for secrets: they are recorded.",
        default_factory=dict,
        examples=[{"NCCL_DEBUG": "INFO"}],
    )
    cluster_options: dict[str, OptionValue] = Field(default_factory=dict)
    """Options for the kind of cluster, by the names that it declares."""

    @model_validator(mode="before")
    @classmethod
    def _gather_cluster_options(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        others = [name for name in values if name not in cls.model_fields]
        beside = [name for name in others if name in option_fields()] if others else []
        given = {name: values[name] for name in beside if values[name] is not None}
        kept = {name: value for name, value in values.items() if name not in beside}
        return kept | {"cluster_options": given} if given else kept

    @model_serializer(mode="wrap")
    def _spread_cluster_options(self, serialize: Callable[["PlanRequest"], dict[str, Any]]) -> dict[str, Any]:
        values = serialize(self)
        options: dict[str, Any] = values.pop("cluster_options", {})
        return values | options


@cache
def option_fields() -> Mapping[str, FieldInfo]:
    """Return all options by name, in the form's order; cluster kinds may share an option."""
    fields = {name: field for name, field in PlanRequest.model_fields.items() if field.json_schema_extra}
    for options in options_of_kinds().values():
        fields |= {name: field for name, field in options.model_fields.items() if name not in fields}
    return MappingProxyType(fields)


def options_only_in(mode: Mode) -> tuple[str, ...]:
    """Return the names of options that apply only to one mode."""
    return tuple(name for name, field in option_fields().items() if declaration(field).only_in is mode)


@cache
def sections() -> Mapping[str, tuple[str, ...]]:
    """Return the sections of the trigger form, which are the panels of `--help`, with their option names."""
    by_section: dict[str, tuple[str, ...]] = {}
    for name, field in option_fields().items():
        section = declaration(field).section
        by_section[section] = (*by_section.get(section, ()), name)
    return MappingProxyType(by_section)


@cache
def _option_type(name: str) -> TypeAdapter[Any]:
    field = PlanRequest.model_fields[name] if name == "workload" else option_fields()[name]
    return TypeAdapter(Annotated[field.annotation, field])  # type: ignore[arg-type]


def parse_value(name: str, value: Any, *, strict: bool = False) -> Any:
    """Convert a value to its option's type, as pydantic does; if `strict`, it must have that type.

    Raises pydantic's ValidationError.
    """
    return _option_type(name).validate_python(value, strict=strict)


def parse_request(values: Mapping[str, Any]) -> PlanRequest:
    """Parse a request from named values (DAG params, JSON); None means the default.

    Raises UserError for unknown names, values that are not valid, and a missing workload.
    """
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name != "workload" and name not in option_fields():
            raise unknown_value("parameter", name, ("workload", *option_fields()))
        if value is None:
            continue
        try:
            parsed[name] = parse_value(name, value)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join((name, *map(str, first["loc"])))
            given, problem = one_line(repr(first["input"])), describe_validation_error(first)
            raise UserError(f"{field} {given}: {problem}.") from None
    if "workload" not in parsed:
        raise UserError("the parameter workload is missing: name it, as in workload=llama3.1.")
    return PlanRequest(**parsed)
