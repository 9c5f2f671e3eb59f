"""Llama 3.1: grouped-query attention, SwiGLU, RMSNorm, scaled rotary embeddings, as NeMo configures them."""

from typing import Any

from nemo.collections.llm.gpt.model.base import local_layer_spec
from nemo.collections.llm.gpt.model.llama import Llama31Config, LlamaModel

from trainer.families import vocabulary
from trainer.spec import ModelShape

ROTARY_BASE = 500_000
"""Base of the rotary embeddings, as in NeMo's Llama31Config8B, 70B and 405B."""


def build_model(shape: ModelShape, device: str, device_options: dict[str, Any]) -> LlamaModel:
    """Return NeMo's Llama model in the planned shape; its weights are not allocated yet."""
    if device == "cpu":
        device_options = {**device_options, "transformer_layer_spec": local_layer_spec}
    vocabulary_size, tokenizer = vocabulary(Llama31Config, shape.vocab_size)
    config = Llama31Config(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        **vocabulary_size,
        seq_length=shape.seq_length,
        rotary_base=ROTARY_BASE,
        **device_options,
    )
    return LlamaModel(config, tokenizer=tokenizer)
