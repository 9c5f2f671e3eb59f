"""What a model's layers may be made of beyond plain attention and MLP, and NeMo's config of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class HybridShape:
    """The Mamba side of a hybrid model (Nemotron-H)."""

    pattern: str
    """One letter a layer: M Mamba, * attention, - MLP."""
    attention_head_dim: int
    mamba_num_heads: int
    mamba_head_dim: int
    mamba_num_groups: int
    mamba_state_dim: int
    chunk_size: int
    """Positions that the state-space scan works on together."""


@dataclass(frozen=True)
class MoeShape:
    """The experts of a mixture, named as in NeMo's configs."""

    num_moe_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    """Of one expert."""
    moe_shared_expert_intermediate_size: int | None = None
    num_dense_layers: int = 0
    """Layers at the start without experts."""
    moe_layer_freq: int = 1
    """Of the layers after them, the first and then every so-manyth has experts."""
    moe_router_score_function: str = "softmax"
    moe_router_load_balancing_type: str = "aux_loss"

    def expert_layers(self, num_layers: int) -> tuple[int, ...]:
        """Return 1 for each layer that has experts, else 0."""
        after = range(num_layers - self.num_dense_layers)
        return (0,) * self.num_dense_layers + tuple(int(at % self.moe_layer_freq == 0) for at in after)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention, named as in NeMo's configs."""

    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True)
class NemoConfig:
    """NeMo's own config of a model, for the family that any model of NeMo's is of."""

    config: str
    """Name of the class in nemo.collections.llm."""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What differs from the class, besides the sizes."""
