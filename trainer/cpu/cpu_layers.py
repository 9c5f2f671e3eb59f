"""CPU versions, from torch and Megatron, of layers that Megatron-Core has only with Transformer Engine.

Llama needs none of this: Megatron's `local_layer_spec` builds it. The names in checkpoints are those of the
layers with Transformer Engine, as in Megatron's own local layers.
"""

from dataclasses import fields
from typing import Any

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
)
from megatron.core.ssm.mamba_block import MambaStack, MambaStackSubmodules
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from trainer.cpu.mamba_reference import ReferenceMambaMixer
from trainer.norms import ZeroCenteredLayerNorm


class MegatronLayerNorm(ZeroCenteredLayerNorm):
    """`ZeroCenteredLayerNorm` with the constructor arguments that Megatron passes to its norms."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5):
        super().__init__(hidden_size, eps, config.params_dtype)


def zero_centered_layers(config: Any, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """Return Megatron's layer specs without Transformer Engine for this stage, with `MegatronLayerNorm`."""
    layer = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.submodules.input_layernorm = MegatronLayerNorm
    layer.submodules.pre_mlp_layernorm = MegatronLayerNorm
    return TransformerBlockSubmodules(
        layer_specs=[layer] * get_num_layers_to_build(config, vp_stage), layer_norm=MegatronLayerNorm
    )


WITHOUT_KERNELS = {
    "bf16": False,
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "moe_router_fusion": False,
    "moe_shared_expert_overlap": False,
    "async_tensor_model_parallel_allreduce": False,
    "cross_entropy_fusion_impl": "native",
}
"""Values on the CPU of config fields that ask for Transformer Engine or streams."""


def without_kernels(config_class: Any) -> dict[str, Any]:
    """Return the options that turn GPU kernels off, as far as they are fields of `config_class`."""
    there = {field.name for field in fields(config_class)}
    return {name: value for name, value in WITHOUT_KERNELS.items() if name in there}


class LatentDotProductAttention(DotProductAttention):
    """Megatron's attention with values whose width differs from that of the keys (latent attention)."""

    def __init__(
        self, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **options: Any
    ):
        super().__init__(*args, **options)
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


def mixture_layers(config: Any, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """Return Megatron's specs of this pipeline stage's layers, in versions that need no Transformer Engine.

    Args:
        config: Megatron's configuration of the model, which says which layers have experts.
        vp_stage: index of the virtual pipeline stage; None without virtual pipeline.
    """
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage
    )
    for layer in block.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = LatentDotProductAttention
    return block


class LocalMambaStack(MambaStack):
    """Megatron's stack of Mamba, attention and MLP layers, with PyTorch's final norm."""

    def __init__(self, config: Any, submodules: MambaStackSubmodules, **options: Any):
        super().__init__(config, submodules, post_layer_norm=False, **options)
        self.post_layer_norm = True
        if self.post_process:
            self.final_norm = WrappedTorchNorm(config, config.hidden_size, config.layernorm_epsilon)


def hybrid_stack(chunk_size: int) -> ModuleSpec:
    """Return the spec of a hybrid model's layers, with the Mamba mixer in plain torch.

    Args:
        chunk_size: number of positions that the mixer processes together.
    """
    mixer = ModuleSpec(
        module=ReferenceMambaMixer,
        params={"chunk_size": chunk_size},
        submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear),
    )
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=DotProductAttention,
            linear_proj=RowParallelLinear,
        ),
    )
    mlp = ModuleSpec(
        module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear)
    )
    return ModuleSpec(
        module=LocalMambaStack,
        submodules=MambaStackSubmodules(
            mamba_layer=ModuleSpec(
                module=MambaLayer,
                submodules=MambaLayerSubmodules(
                    norm=WrappedTorchNorm,
                    mixer=mixer,
                    mamba_bda=get_bias_dropout_add,
                    sharded_state_dict_keys_map={"norm.": "mixer.in_proj.layer_norm_"},
                ),
            ),
            attention_layer=ModuleSpec(
                module=TransformerLayer,
                submodules=TransformerLayerSubmodules(
                    input_layernorm=WrappedTorchNorm,
                    self_attention=attention,
                    self_attn_bda=get_bias_dropout_add,
                    sharded_state_dict_keys_map={"input_layernorm.": "self_attention.linear_qkv.layer_norm_"},
                ),
            ),
            mlp_layer=ModuleSpec(
                module=MLPLayer,
                submodules=TransformerLayerSubmodules(
                    pre_mlp_layernorm=WrappedTorchNorm,
                    mlp=mlp,
                    mlp_bda=get_bias_dropout_add,
                    sharded_state_dict_keys_map={"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"},
                ),
            ),
        ),
    )
