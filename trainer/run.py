"""The planned run, read from the pipeline's JSON into frozen records, checked before anything heavy loads."""

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from trainer.errors import TrainerError
from trainer.spec import FP8_RECIPES, HybridShape, ModelShape, MoeShape, Parallelism, PlannedRun, Recipe

SCHEMA_VERSION = 1
MODES = ("performance", "checkpoint_save", "checkpoint_load", "profile", "nccl_trace")
HYBRID = "nemotron_h"
"""The architecture with Mamba layers."""
GPT = "gpt"
"""The architecture of any model that NeMo has a config of."""
VOCABULARY_BLOCK = 128
"""NeMo's make_vocab_size_divisible_by."""

TRACE_FOLDER = "torch_profile"
"""Below the job's folder: what torch's profiler writes."""

TFLOPS_FIELD = "TFLOPS_per_GPU"
"""Of a step's line; NeMo's name for it."""
WALL_TIME_FIELD = "wall_step_timing in s"
"""Of a step's line, ours: from the end of the step before to the end of this one, whatever lay between."""

Record = TypeVar("Record")


def read_run(path: Path) -> PlannedRun:
    """Read and check a planned run.

    Raises:
        TrainerError: the file cannot be read, lacks a field, has a wrong type, or asks what cannot be.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainerError(f"cannot read the planned run {path}: {error.strerror}.") from error
    except ValueError as error:
        raise TrainerError(f"the planned run {path} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise TrainerError(f"the planned run {path} is not a JSON object.")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TrainerError(f"{path} has schema_version {version!r}; this trainer reads {SCHEMA_VERSION}.")
    run = _record(PlannedRun, content, where=str(path))
    _check(run)
    return run


def _record(cls: type[Record], content: Mapping[str, Any], where: str) -> Record:
    """Build a dataclass from JSON; fields of the JSON that the trainer does not use are ignored."""
    types_of = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        if field.name in content:
            values[field.name] = _value(types_of[field.name], content[field.name], where, field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise TrainerError(f"{where} lacks the field '{field.name}'.")
    return cls(**values)


def _value(expected: Any, value: Any, where: str, name: str) -> Any:
    """Check one JSON value against an annotation."""
    kind, arguments = get_origin(expected), get_args(expected)
    if kind in (types.UnionType, Union):  # only `X | None` is used
        return None if value is None else _value(arguments[0], value, where, name)
    if kind is Annotated:
        number = _value(arguments[0], value, where, name)
        if not arguments[1].allows(number):
            wanted = "at least" if arguments[1].zero_allowed else "above"
            raise TrainerError(f"{where}: {name} {number} is not {wanted} 0.")
        return number
    if kind is Literal:
        if value not in arguments:
            raise TrainerError(f"{where}: {name} is {value!r}, not one of {', '.join(map(str, arguments))}.")
        return value
    if is_dataclass(expected) and isinstance(expected, type):
        if not isinstance(value, dict):
            raise TrainerError(f"{where}: {name} is {value!r}, not an object.")
        return _record(expected, value, f"{where}: {name}")
    if kind is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], one, where, name) for one in value)
    plain = kind or expected
    if not isinstance(value, plain) or (isinstance(value, bool) and plain is not bool):
        raise TrainerError(f"{where}: {name} is {value!r}, not of type {plain.__name__}.")
    return value


def _check(run: PlannedRun) -> None:
    """Refuse a plan that NeMo would only refuse after its imports, and in its own words."""
    recipe, parallelism, shape = run.recipe, run.recipe.parallelism, run.recipe.model
    if run.mode not in MODES:
        raise TrainerError(f"mode '{run.mode}' is not one this trainer has; it has: {', '.join(MODES)}.")
    if shape.hybrid is not None:
        _check_hybrid(shape, shape.hybrid, parallelism)
    elif shape.architecture == HYBRID:
        raise TrainerError(f"a model of the architecture '{HYBRID}' needs its hybrid sizes, and has none.")
    if shape.architecture == GPT and shape.nemo is None:
        raise TrainerError(f"a model of the architecture '{GPT}' needs the name of its config in NeMo.")
    if shape.moe is not None:
        _check_experts(recipe, shape.moe)
    if not 0 <= run.first_step < run.max_steps:
        raise TrainerError(f"first_step {run.first_step} is not in 0 … max_steps - 1 = {run.max_steps - 1}.")
    if run.seed < 1:
        raise TrainerError(f"seed {run.seed} is not positive, which Megatron requires.")
    _check_mode(run)
    _check_gpu_options(run)
    replica_batch = recipe.micro_batch_size * parallelism.data
    for what, size, parts in (
        ("hidden_size", shape.hidden_size, shape.num_attention_heads if shape.kv_channels is None else 1),
        ("num_attention_heads", shape.num_attention_heads, shape.num_query_groups),
        ("num_attention_heads", shape.num_attention_heads, parallelism.tensor),
        ("num_query_groups", shape.num_query_groups, parallelism.tensor),
        ("ffn_hidden_size", shape.ffn_hidden_size, parallelism.tensor),
        ("vocab_size", shape.vocab_size, parallelism.tensor),
        ("global_batch_size", recipe.global_batch_size, replica_batch),
    ):
        _divides(what, size, parts)
    _check_stages(parallelism, shape.num_layers)


def _check_stages(parallelism: Parallelism, num_layers: int) -> None:
    """Refuse layers that do not come out even in the stages that have no number of their own."""
    if not parallelism.own_layers:
        if not parallelism.counts_embedding(num_layers):
            _divides("num_layers", num_layers, parallelism.stages)
        return
    own = sum(parallelism.own_layers)
    left, others = num_layers - own, parallelism.pipeline - len(parallelism.own_layers)
    if left < others or (left % others if others else left):
        raise TrainerError(
            f"num_layers {num_layers} less the {own} of first and last stage cannot be divided by {others}, "
            "as the plan's sizes require."
        )


def _check_mode(run: PlannedRun) -> None:
    """Refuse what does not go with the mode, and what no mode has yet."""
    if (run.mode == "checkpoint_load") != (run.checkpoint_path is not None):
        raise TrainerError(
            f"mode '{run.mode}' with checkpoint_path {run.checkpoint_path!r}: a checkpoint_load needs one, "
            "and no other mode takes one."
        )
    if run.async_save and run.mode != "checkpoint_save":
        raise TrainerError(f"async_save is for the mode 'checkpoint_save', and the plan's is '{run.mode}'.")
    if (run.mode == "profile") != (run.profile is not None):
        raise TrainerError(
            f"mode '{run.mode}' with profile {run.profile}: a profile run has what is profiled, "
            "and no other mode does."
        )
    if (run.mode == "checkpoint_load") != (run.first_step > 0):
        raise TrainerError(
            f"mode '{run.mode}' cannot start at first_step {run.first_step}: a checkpoint_load starts "
            "above 0, every other mode at 0."
        )


def _check_gpu_options(run: PlannedRun) -> None:
    """Refuse what only GPUs do on the CPU, and an FP8 recipe that does not go with the number format."""
    recipe = run.recipe
    for name, wanted in (
        ("cuda_graphs", run.settings.cuda_graphs),
        ("tp_comm_overlap", run.settings.tp_comm_overlap),
    ):
        if wanted and recipe.gpu_type == "cpu":
            raise TrainerError(f"{name} is for GPUs, and the plan is for the CPU: plan the run without it.")
    if run.settings.tp_comm_overlap and recipe.parallelism.tensor == 1:
        raise TrainerError("tp_comm_overlap needs tensor parallelism, and the plan has none.")
    fp8_recipe = run.settings.fp8_recipe
    if fp8_recipe not in ((None,) if recipe.dtype != "fp8" else FP8_RECIPES):
        raise TrainerError(
            f"dtype '{recipe.dtype}' with fp8_recipe {fp8_recipe!r}: fp8 needs one of "
            f"{', '.join(FP8_RECIPES)}, and no other dtype takes one."
        )


def _check_hybrid(shape: ModelShape, hybrid: HybridShape, parallelism: Parallelism) -> None:
    """Refuse what Megatron's Mamba layers cannot be."""
    if shape.architecture != HYBRID:
        raise TrainerError(f"a model of the architecture '{shape.architecture}' cannot have hybrid sizes.")
    pattern = hybrid.pattern or ""
    if set(pattern) - set("M*-") or len(pattern) != shape.num_layers:
        raise TrainerError(
            f"the hybrid pattern '{pattern}' is not one of M, * and - for each of {shape.num_layers} layers."
        )
    if parallelism.virtual_pipeline is not None:
        raise TrainerError(
            f"virtual_pipeline {parallelism.virtual_pipeline} cannot be with the architecture '{HYBRID}': "
            "Megatron's Mamba layers have no interleaved pipeline; leave it out."
        )
    _divides("mamba_num_heads", hybrid.mamba_num_heads, hybrid.mamba_num_groups)
    _divides("mamba_num_groups", hybrid.mamba_num_groups, parallelism.tensor)
    # Else NeMo would round the vocabulary of this family up, and train another model than planned.
    _divides("vocab_size", shape.vocab_size, VOCABULARY_BLOCK * parallelism.tensor)


def _check_experts(recipe: Recipe, moe: MoeShape) -> None:
    """Refuse experts that cannot be dealt to the ranks."""
    parallelism = recipe.parallelism
    expert, expert_tensor = parallelism.expert or 1, parallelism.expert_tensor or parallelism.tensor
    _divides("num_moe_experts", moe.num_moe_experts, expert)
    _divides("moe_ffn_hidden_size", moe.moe_ffn_hidden_size, expert_tensor)
    _divides("ranks", parallelism.world_size, expert * expert_tensor * parallelism.pipeline)
    if recipe.gpu_type == "cpu" and max(parallelism.tensor, expert_tensor) > 1:
        raise TrainerError(
            f"a mixture of experts with tensor parallel {max(parallelism.tensor, expert_tensor)} needs "
            "sequence parallelism, which Megatron's layers for the CPU have not: there it must be 1."
        )


def _divides(what: str, size: int, parts: int) -> None:
    if size % parts:
        raise TrainerError(f"{what} {size} cannot be divided by {parts}, as the plan's sizes require.")
