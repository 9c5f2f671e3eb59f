"""The family `gpt`: any GPT-like model for which NeMo has a config class; the plan names the class."""

from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import isclass
from typing import Any

from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from nemo.collections import llm
from nemo.collections.llm import GPTConfig, GPTModel  # all of it, before the fork: a plan may name any config
from nemo.collections.llm.gpt.model.base import default_layer_spec, gpt_data_step

from trainer.errors import TrainerError
from trainer.families import vocabulary
from trainer.spec import ModelShape, NemoConfig

SIZES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("seq_length", "gated_linear_unit", "mtp_num_layers"),
)
"""Fields of the shape with the same name in NeMo's configs."""
PLAIN = (bool, int, float, str, list)
"""Types of values that a plan may set: no functions and no types."""


def build_model(shape: ModelShape, device: str, device_options: dict[str, Any]) -> GPTModel:
    """Return NeMo's model with the planned config and shape; its weights are not allocated yet.

    Raises:
        TrainerError: this NeMo lacks the config or a field of it, or the layers need a GPU.
    """
    if shape.nemo is None:  # read_run refuses such a plan
        raise ValueError("the planned model names no NeMo config class")
    config_class = _config_class(shape.nemo.config)
    if device == "cpu":
        from trainer.cpu.cpu_layers import mixture_layers, without_kernels

        _require_plain_layers(config_class)
        device_options = {
            **device_options,
            **without_kernels(config_class),
            "transformer_layer_spec": mixture_layers,
        }
    options = {**_layers(config_class, shape), **_further_tokens(shape), **device_options}
    vocabulary_size, tokenizer = vocabulary(config_class, shape.vocab_size)
    sizes = {**_sizes(shape), **vocabulary_size}
    _check_fields(config_class, shape.nemo, taken={*sizes, *options})
    config = config_class(**{**shape.nemo.fields, **sizes, **options})
    return _model_class(config_class)(config, tokenizer=tokenizer)


def _config_class(name: str) -> Any:
    """Return the class of that name from nemo.collections.llm; only a GPT config is accepted."""
    config_class = getattr(llm, name, None)
    if isclass(config_class) and issubclass(config_class, GPTConfig):
        return config_class
    there = [other for other, value in vars(llm).items() if isclass(value) and issubclass(value, GPTConfig)]
    raise TrainerError(
        f"nemo.collections.llm of this NeMo has no GPT config class '{name}'"
        f"{_near(name, there)}: correct it in the workload's model."
    )


def _near(name: str, there: Sequence[str]) -> str:
    near = get_close_matches(name, there)
    return f"; similar names are {', '.join(near)}" if near else ""


def _model_class(config_class: Any) -> Any:
    """Return NeMo's model class for a config: the one in the config's own module, else GPTModel."""
    module = import_module(config_class.__module__)
    model_classes = [
        value
        for value in vars(module).values()
        if isclass(value) and issubclass(value, GPTModel) and value.__module__ == module.__name__
    ]
    return next(
        (
            model_class
            for model_class in model_classes
            if not any(model_class in other.__subclasses__() for other in model_classes)
        ),
        GPTModel,
    )


def _sizes(shape: ModelShape) -> dict[str, Any]:
    """Return the plan's sizes as fields of the config."""
    sizes = {name: getattr(shape, name) for name in SIZES}
    sizes["share_embeddings_and_output_weights"] = bool(shape.share_embeddings_and_output_weights)
    sizes |= {"kv_channels": shape.kv_channels} if shape.mla is None else asdict(shape.mla)
    if shape.moe is None:
        return {**sizes, "num_moe_experts": None}
    experts = asdict(shape.moe)
    del experts["num_dense_layers"]
    return {**sizes, **experts, "moe_layer_freq": list(shape.moe.expert_layers(shape.num_layers))}


def _layers(config_class: Any, shape: ModelShape) -> dict[str, Any]:
    """Return the option that gives experts to only some layers, if the model needs it.

    NeMo's default layers would all have experts. Megatron's decoder block takes dense layers and layers with
    experts.
    """
    if shape.moe is None or all(shape.moe.expert_layers(shape.num_layers)):
        return {}
    if _find_layers(config_class) is not default_layer_spec:
        return {}
    return {"transformer_layer_spec": partial(get_gpt_decoder_block_spec, use_transformer_engine=True)}


def _further_tokens(shape: ModelShape) -> dict[str, Any]:
    """Return the options that pass the tokens to the last pipeline stage, for multi-token prediction."""
    if shape.mtp_num_layers is None:
        return {}
    return {"data_step_fn": partial(gpt_data_step, use_mtp=True)}


def _require_plain_layers(config_class: Any) -> None:
    """Refuse a config with layers that only Transformer Engine has: with other layers it is another model."""
    layers = _find_layers(config_class)
    if layers is default_layer_spec or getattr(layers, "func", None) is get_gpt_decoder_block_spec:
        return
    raise TrainerError(
        f"{config_class.__name__} has layers of its own, which need Transformer Engine: it trains on GPUs "
        "only."
    )


def _find_layers(config_class: Any) -> Any:
    return _defaults(config_class)["transformer_layer_spec"]


def _defaults(config_class: Any) -> dict[str, Any]:
    """Return the defaults of the class's optional fields."""
    defaults = {field.name: field.default for field in fields(config_class) if field.default is not MISSING}
    factories = {field.name: field.default_factory for field in fields(config_class)}
    return defaults | {name: make() for name, make in factories.items() if make is not MISSING}


def _check_fields(config_class: Any, nemo: NemoConfig, taken: set[str]) -> None:
    """Refuse unknown fields, values of another type, and fields that the plan or trainer sets."""
    defaults = _defaults(config_class)
    for name, value in nemo.fields.items():
        if name not in defaults:
            raise TrainerError(
                f"{nemo.config} of this NeMo has no field '{name}'{_near(name, list(defaults))}: correct it "
                "in the workload's model."
            )
        if name in taken:
            raise TrainerError(
                f"{name} of {nemo.config} is set by the trainer: leave it out of the workload."
            )
        default = defaults[name]
        kind: Any = (int, float) if type(default) in (int, float) else type(default)
        fits = isinstance(value, kind) and isinstance(value, bool) == isinstance(default, bool)
        if default is not None and not (isinstance(default, PLAIN) and fits):
            raise TrainerError(
                f"{name} of {nemo.config} is {default!r} in this NeMo and cannot be {value!r}: give a value "
                "of the same type in the workload's model, or leave it out."
            )
