"""The planned shape as a model of Megatron-Bridge: the families `llama` and `gpt`, as in NeMo's configs."""

from dataclasses import asdict
from typing import Any

import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider

from trainer import devices
from trainer.cpu.cpu_layers import mixture_layers, without_kernels
from trainer.spec import PlannedRun

LLAMA_31 = {
    "rotary_base": 500_000,
    "rope_scaling": True,
    "rope_scaling_factor": 8.0,
    "seq_len_interpolation_factor": None,
}
"""Llama 3.1's rotary embeddings, as in its 8B, 70B and 405B."""
SIZES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "vocab_size", "seq_length", "mtp_num_layers"),
)
"""Fields of the shape with the same name in Megatron-Bridge."""


def model_provider(run: PlannedRun, device: str) -> GPTModelProvider:
    """Return Megatron-Bridge's description of the planned model: RMSNorm, SwiGLU, rotary embeddings."""
    shape, parallelism = run.recipe.model, run.recipe.parallelism
    options: dict[str, Any] = {name: getattr(shape, name) for name in SIZES}
    if shape.architecture == "llama":
        options |= LLAMA_31
    if shape.moe is not None:
        experts = asdict(shape.moe)
        del experts["num_dense_layers"]
        options |= {**experts, "moe_layer_freq": list(shape.moe.expert_layers(shape.num_layers))}
        options |= {"moe_token_dispatcher_type": "alltoall"}
    if device == "cpu":
        options |= devices.model_options(device) | without_kernels(GPTModelProvider)
        options["transformer_layer_spec"] = mixture_layers
    counts_embedding = parallelism.counts_embedding(shape.num_layers)
    return GPTModelProvider(
        normalization="RMSNorm",
        layernorm_epsilon=1e-5,
        activation_func=F.silu,
        gated_linear_unit=True,
        add_bias_linear=False,
        position_embedding_type="rope",
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=0.02,
        share_embeddings_and_output_weights=bool(shape.share_embeddings_and_output_weights),
        tensor_model_parallel_size=parallelism.tensor,
        pipeline_model_parallel_size=parallelism.pipeline,
        virtual_pipeline_model_parallel_size=parallelism.interleaved_stages,
        num_layers_in_first_pipeline_stage=parallelism.first_stage_layers,
        num_layers_in_last_pipeline_stage=parallelism.last_stage_layers,
        account_for_embedding_in_pipeline_split=counts_embedding,
        account_for_loss_in_pipeline_split=counts_embedding,
        context_parallel_size=parallelism.context,
        expert_model_parallel_size=parallelism.expert or 1,
        expert_tensor_parallel_size=parallelism.expert_tensor,
        # Needs Transformer Engine's norms: Megatron's own RMSNorm does not know sequence parallelism.
        sequence_parallel=device == "cuda" and parallelism.tensor > 1,
        **options,
    )
