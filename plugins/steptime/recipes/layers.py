"""What a model's layers may be made of beyond plain attention and MLP, named as in NeMo's model configs."""

import re
from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from steptime.frozen import Frozen
from steptime.recipes.config_problems import FieldError
from steptime.refusals import written


class HybridShape(Frozen):
    """The Mamba side of a hybrid model (Nemotron-H): its layers by kind, and the state space's sizes."""

    pattern: str | None = None
    """One letter a layer: M Mamba, * attention, - MLP (Megatron-Core's hybrid override pattern)."""
    num_attention_layers: PositiveInt
    num_mlp_layers: PositiveInt
    num_mamba_layers: PositiveInt
    attention_head_dim: PositiveInt
    mamba_num_heads: PositiveInt
    mamba_head_dim: PositiveInt
    mamba_num_groups: PositiveInt
    mamba_state_dim: PositiveInt
    expand: PositiveInt
    chunk_size: PositiveInt

    @model_validator(mode="after")
    def _pattern_counts(self) -> Self:
        counts = {"*": self.num_attention_layers, "-": self.num_mlp_layers, "M": self.num_mamba_layers}
        if self.pattern is not None and Counter(self.pattern) != Counter(counts):
            raise ValueError(f"the pattern's layers are {dict(Counter(self.pattern))}, not {counts}")
        return self


class MoeShape(Frozen):
    """The experts of a mixture: MLPs of which each token passes a few, that a router chooses."""

    num_moe_experts: PositiveInt
    moe_router_topk: PositiveInt
    """Experts that a token passes."""
    moe_ffn_hidden_size: PositiveInt
    """Of one expert."""
    moe_shared_expert_intermediate_size: PositiveInt | None = None
    """Of all experts together that every token passes; None for none."""
    num_dense_layers: NonNegativeInt = 0
    """Layers at the start that have an MLP of `ffn_hidden_size` in place of experts."""
    moe_layer_freq: PositiveInt = 1
    """Of the layers after them, the first and then every so-manyth has experts; the others have an MLP."""
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss", "sinkhorn", "none"] = "aux_loss"

    @model_validator(mode="after")
    def _chooses_of_what_there_is(self) -> Self:
        if self.moe_router_topk > self.num_moe_experts:
            raise FieldError(
                f"{self.moe_router_topk} of {self.num_moe_experts} experts cannot be chosen: "
                "give fewer, or more num_moe_experts",
                "moe_router_topk",
            )
        return self


class LatentAttention(Frozen):
    """Multi-head latent attention (DeepSeek): queries, keys and values come from narrow projections."""

    q_lora_rank: PositiveInt | None = None
    """None for queries straight from the hidden states."""
    kv_lora_rank: PositiveInt
    qk_head_dim: PositiveInt
    qk_pos_emb_head_dim: PositiveInt
    """What a head's keys have beside `qk_head_dim`, for positions; all heads share it."""
    v_head_dim: PositiveInt


_OF_THE_RUN = re.compile(
    r"bf16|fp16|fp8.*|fp4.*|params_dtype|.*parallel(_size|_layout)?|.*pipeline.*|tp_comm.*|recompute.*"
    r"|.*cuda_graph.*|cpu_offloading.*|.*init_method|transformer_layer_spec|.*_fn|.*_func"
)
"""Fields of NeMo's configs that parallelism, number format and launch decide, or that are functions."""


class NemoConfig(Frozen):
    """The config of NeMo's that the trainer builds a model from; its sizes are the model's own."""

    config: Annotated[str, written("[A-Z][A-Za-z0-9_]*", "the name of a class, as in MixtralConfig")]
    """Name of a class in nemo.collections.llm: `MixtralConfig`."""
    fields: dict[str, bool | int | float | str | list[int]] = Field(default_factory=dict)
    """What is otherwise than the class has it."""

    @model_validator(mode="after")
    def _are_of_the_model(self) -> Self:
        for name in self.fields:
            if _OF_THE_RUN.fullmatch(name):
                raise FieldError(
                    "is decided by the run (its parallelism, number format and settings): leave it out",
                    "fields",
                    name,
                )
        return self
