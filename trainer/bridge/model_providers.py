"""The planned shape as a model of Megatron-Bridge: `llama`, `gpt` and `nemotron_h`, as in NeMo's configs."""

from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch.nn.functional as F
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.mamba.mamba_provider import MambaModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.utils.fusions import can_enable_gradient_accumulation_fusion
from megatron.core.activations import squared_relu
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.enums import AttnBackend

from trainer import devices
from trainer.cpu.cpu_layers import hybrid_stack, mixture_layers, without_kernels
from trainer.errors import TrainerError
from trainer.spec import HybridShape, ModelShape, PlannedRun, Settings

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

LIKE_LLAMA = {
    "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-5,
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "init_method_std": 0.02,
}
"""What a model has unless its plan says otherwise."""
FUSED = {
    "apply_rope_fusion": True,
    "bias_activation_fusion": True,
    "bias_dropout_fusion": True,
    "persist_layer_norm": True,
}
"""Kernels on GPUs that the class leaves off, and upstream's models of this kind switch on."""
LATENT = {
    "multi_latent_attention": True,
    "attention_softmax_in_fp32": False,
    "cross_entropy_loss_fusion": True,
    "gradient_accumulation_fusion": can_enable_gradient_accumulation_fusion(),
    "masked_softmax_fusion": True,
}
"""Latent attention, and defaults of `GPTModelProvider` that its subclass for it takes from Megatron-Core."""
EXPERTS_ON_GPUS = {
    "moe_grouped_gemm": True,
    "moe_permute_fusion": True,
    "moe_router_force_load_balancing": True,
}
"""The same of mixtures of experts. Tokens go to all experts equally, as in upstream's benchmarks."""
HYBRID_ON_GPUS = {
    "persist_layer_norm": True,
    "masked_softmax_fusion": True,
    "attention_softmax_in_fp32": False,
    "attention_backend": AttnBackend.auto,
}
"""What upstream's Nemotron-H has on GPUs, and the class of hybrid models does not."""


def model_provider(run: PlannedRun, device: str) -> GPTModelProvider | MambaModelProvider:
    """Return Megatron-Bridge's description of the planned model, for `cpu` or `cuda`."""
    shape = run.recipe.model
    options = {name: getattr(shape, name) for name in SIZES} | _parallelism(run, device)
    options["share_embeddings_and_output_weights"] = bool(shape.share_embeddings_and_output_weights)
    if shape.hybrid is not None:
        return _hybrid(shape.hybrid, run.settings, device, options)
    return _transformer(shape, run.settings, device, options)


def _transformer(
    shape: ModelShape, settings: Settings, device: str, options: dict[str, Any]
) -> GPTModelProvider:
    """Return a model with gated MLPs, dense or a mixture of experts, by default like Llama.

    Raises:
        TrainerError: this Megatron-Bridge does not take the plan's further fields of Megatron.
    """
    if shape.architecture == "llama":
        options |= LLAMA_31
    if shape.window_size is not None:
        options |= {
            "window_size": (shape.window_size, 0),
            "window_attn_skip_freq": shape.window_attn_skip_freq,
        }
    provider, fused = GPTModelProvider, FUSED
    if shape.mla is not None:
        provider, fused = MLAModelProvider, FUSED | {"apply_rope_fusion": False}
        options |= LATENT | asdict(shape.mla)
    if shape.moe is not None:
        experts = asdict(shape.moe)
        del experts["num_dense_layers"]
        options |= {**experts, "moe_layer_freq": list(shape.moe.expert_layers(shape.num_layers))}
        options |= _dispatcher(settings.moe_flex_dispatcher_backend)
    if device == "cpu":
        options |= devices.model_options(device) | without_kernels(provider)
        options["transformer_layer_spec"] = mixture_layers
    else:
        options |= _kernels(settings) | fused | (EXPERTS_ON_GPUS if shape.moe is not None else {})
        if shape.moe is not None and shape.moe.num_dense_layers:
            # The layers that the class has by default are all alike.
            options["transformer_layer_spec"] = partial(
                get_gpt_decoder_block_spec, use_transformer_engine=True
            )
    options |= {"activation_func": F.silu, "gated_linear_unit": True}
    further = shape.megatron_fields or {}
    _check_fields(provider, further, taken=options.keys())
    return provider(**{**LIKE_LLAMA, **further, **options})


def _check_fields(provider: type, further: Mapping[str, Any], taken: Collection[str]) -> None:
    """Refuse unknown fields, values of another type, and fields that the plan or the trainer sets."""
    defaults = {field.name: None if field.default is MISSING else field.default for field in fields(provider)}
    for name, value in further.items():
        if name not in defaults:
            near = get_close_matches(name, defaults)
            similar = f"; similar names are {', '.join(near)}" if near else ""
            problem = f"is no field of {provider.__name__} in this Megatron-Bridge{similar}: correct it"
        elif name in taken:
            problem = "is set by the plan or the trainer: leave it out"
        elif not _is_like(value, default := defaults[name]):
            problem = f"is {default!r} by default and cannot be {value!r}: give a value of the same type"
        else:
            continue
        raise TrainerError(f"{name} {problem} (megatron_fields of the workload's model).")


def _is_like(value: Any, default: Any) -> bool:
    """Return whether a value may replace a default: any for None, else one of the same type."""
    kind: Any = (int, float) if type(default) in (int, float) else type(default)
    fits = isinstance(value, kind) and isinstance(value, bool) == isinstance(default, bool)
    return default is None or (isinstance(default, (bool, int, float, str)) and fits)


def _hybrid(
    hybrid: HybridShape, settings: Settings, device: str, options: dict[str, Any]
) -> MambaModelProvider:
    """Return a model with Mamba, attention and squared-ReLU MLP layers, without position embeddings."""
    if device == "cpu":
        options |= devices.model_options(device) | without_kernels(MambaModelProvider)
        options["mamba_stack_spec"] = hybrid_stack(hybrid.chunk_size)
    else:
        options |= _kernels(settings) | HYBRID_ON_GPUS
    return MambaModelProvider(
        activation_func=squared_relu,
        is_hybrid_model=True,
        hybrid_override_pattern=hybrid.pattern,
        mamba_num_heads=hybrid.mamba_num_heads,
        mamba_head_dim=hybrid.mamba_head_dim,
        mamba_num_groups=hybrid.mamba_num_groups,
        mamba_state_dim=hybrid.mamba_state_dim,
        **{**options, "kv_channels": hybrid.attention_head_dim},
    )


def _kernels(settings: Settings) -> dict[str, Any]:
    """Return the fields of a model for CUDA graphs, recomputation and the fused loss on GPUs."""
    options: dict[str, Any] = {"cross_entropy_fusion_impl": settings.cross_entropy_fusion_impl}
    if settings.cuda_graphs:
        options |= {"cuda_graph_impl": settings.cuda_graph_impl, "use_te_rng_tracker": True}
        if settings.cuda_graph_scope is not None:
            options["cuda_graph_scope"] = list(settings.cuda_graph_scope)
    if settings.recompute_granularity is not None:
        modules = settings.recompute_modules
        options |= {
            "recompute_granularity": settings.recompute_granularity,
            "recompute_method": settings.recompute_method,
            "recompute_num_layers": settings.recompute_num_layers,
            "recompute_modules": None if modules is None else list(modules),
        }
    if settings.use_megatron_fsdp:
        options["init_model_with_meta_device"] = True
    return options


def _dispatcher(backend: str | None) -> dict[str, Any]:
    """Return how tokens reach the ranks of their experts: by NCCL's all-to-all without a backend."""
    if backend is None:
        return {"moe_token_dispatcher_type": "alltoall"}
    return {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": backend,
        "moe_shared_expert_overlap": False,
    }


def _parallelism(run: PlannedRun, device: str) -> dict[str, Any]:
    """Return the fields of a model that say how it is spread over ranks."""
    parallelism = run.recipe.parallelism
    counts_embedding = parallelism.counts_embedding(run.recipe.model.num_layers)
    return {
        "tensor_model_parallel_size": parallelism.tensor,
        "pipeline_model_parallel_size": parallelism.pipeline,
        "virtual_pipeline_model_parallel_size": parallelism.interleaved_stages,
        "num_layers_in_first_pipeline_stage": parallelism.first_stage_layers,
        "num_layers_in_last_pipeline_stage": parallelism.last_stage_layers,
        "account_for_embedding_in_pipeline_split": counts_embedding,
        "account_for_loss_in_pipeline_split": counts_embedding,
        "context_parallel_size": parallelism.context,
        "expert_model_parallel_size": parallelism.expert or 1,
        "expert_tensor_parallel_size": parallelism.expert_tensor,
        # Needs Transformer Engine's norms: Megatron's own RMSNorm does not know sequence parallelism.
        "sequence_parallel": device == "cuda" and parallelism.tensor > 1,
    }
