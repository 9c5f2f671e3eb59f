"""Nemotron4: grouped-query attention, squared ReLU, zero-centred LayerNorm, half-rotary embeddings."""

from dataclasses import fields
from typing import Any

from nemo.collections.llm.gpt.model.nemotron import (
    Nemotron4Config15B,
    Nemotron4Config340B,
    NemotronConfig,
    NemotronModel,
)

from trainer.families import vocabulary
from trainer.spec import ModelShape

SIZES = (Nemotron4Config15B, Nemotron4Config340B)
"""Configs that differ in their sizes and in the standard deviation of the initial weights."""


def build_model(shape: ModelShape, device: str, device_options: dict[str, Any]) -> NemotronModel:
    """Return NeMo's Nemotron model in the planned shape; its weights are not allocated yet."""
    if device == "cpu":
        from trainer.cpu.cpu_layers import zero_centered_layers

        device_options = {**device_options, "transformer_layer_spec": zero_centered_layers}
    config_class = _config_class(shape)
    vocabulary_size, tokenizer = vocabulary(config_class, shape.vocab_size)
    config = config_class(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=None,  # hidden size / heads, as in both sizes; the base class has 128
        **vocabulary_size,
        seq_length=shape.seq_length,
        **device_options,
    )
    return NemotronModel(config, tokenizer=tokenizer)


def _config_class(shape: ModelShape) -> Any:
    """Return NeMo's config class for this hidden size, else the base class of the family.

    Other defaults of the class may depend on the hidden size.
    """
    for size in SIZES:
        (hidden_size,) = [field.default for field in fields(size) if field.name == "hidden_size"]
        if hidden_size == shape.hidden_size:
            return size
    return NemotronConfig
