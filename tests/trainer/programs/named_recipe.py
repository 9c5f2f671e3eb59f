"""Train a recipe of Megatron-Bridge by its name on the CPU, with a tiny model and few steps.

    python named_recipe.py FUNCTION STEPS [OVERRIDE ...]

FUNCTION is one of Megatron-Bridge's own recipe functions, an OVERRIDE is one of Hydra, such as
`train.manual_gc=true`. What the recipe says of sizes, parallelism and kernels is replaced; all else is the
recipe's. The files of the Hugging Face hub that it names are replaced by tiny ones of the same architecture.
"""

import json
import os
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from megatron.bridge import AutoBridge, recipes
from megatron.bridge.recipes.kimi import kimi_k2
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.tensor_parallel import layers
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_layer import MoETransformerLayer, TransformerLayerSubmodules

from trainer import devices
from trainer.bridge.on_cpu import cpu_patches
from trainer.cpu.cpu_as_cuda import Patch, cpu_as_cuda
from trainer.cpu.cpu_layers import hybrid_stack, mixture_layers, without_kernels

LENGTH, VOCABULARY = 64, 512
SIZES = {"hidden_size": 64, "num_attention_heads": 4}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "v_head_dim": 16}
OF_HUB = {
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
    **SIZES,
}
HUB: dict[str, dict[str, Any]] = {
    "meta-llama/": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "Qwen/": {
        **{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"},
        **{"num_experts": 4, **EXPERTS},
    },
    "openai/": {
        **{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"},
        **{"num_local_experts": 4, "sliding_window": 16, **EXPERTS},
    },
    "nvidia/": {
        **{"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h"},
        **{"hybrid_override_pattern": "ME*", "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2},
        **{"ssm_state_size": 16, "n_routed_experts": 4, "moe_shared_expert_intermediate_size": 32, **EXPERTS},
        **{"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
    },
    "deepseek-ai/": {
        **{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "n_routed_experts": 4},
        **{"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4},
        **{"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "aux_loss_alpha": 1e-4, **EXPERTS, **LATENT},
    },
}
HUB["moonshotai/"] = HUB["deepseek-ai/"]
"""Tiny `config.json` of the models on the hub, by the owner of the repository."""
IN_CODE: dict[str, Any] = {"num_layers": 3, "ffn_hidden_size": 128, "vocab_size": VOCABULARY, **SIZES}
"""Sizes of a model that a recipe takes from Megatron-Bridge's own code."""
EXPERTS_IN_CODE = {
    **{"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 32},
    "moe_shared_expert_intermediate_size": 32,
}
LATENT_IN_CODE = {
    **{**LATENT, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "kv_channels": 16, "num_query_groups": 4},
    "moe_layer_freq": [0, 1, 1],
}
MAMBA_IN_CODE = {
    **{"mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_num_groups": 2, "mamba_state_dim": 16},
    **{"kv_channels": 16, "num_query_groups": 2},
}
WITHOUT_GPUS: dict[str, Any] = {
    **dict.fromkeys(("tensor_model_parallel_size", "pipeline_model_parallel_size"), 1),
    **dict.fromkeys(("context_parallel_size", "expert_model_parallel_size"), 1),
    **dict.fromkeys(("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"), None),
    **dict.fromkeys(("expert_tensor_parallel_size", "recompute_granularity"), None),
    "sequence_parallel": False,
    "moe_token_dispatcher_type": "alltoall",
    "moe_flex_dispatcher_backend": None,
    "cuda_graph_impl": "none",
    "use_te_rng_tracker": False,
    "attention_backend": AttnBackend.local,
    "seq_length": LENGTH,
}
PATCHES: list[Patch] = [
    # Megatron-Bridge 0.6 runs in a stream of its own where parts of a step are graphs.
    (torch.cuda, "set_stream", lambda _stream: None),
    # Megatron-Core adds an expert's bias in place, to a tensor that this function has returned as it was.
    (layers, "reduce_from_tensor_model_parallel_region", lambda tensor, *_, **__: tensor.clone()),
]
"""What models of which steptime's trainer has none need on one rank, beyond what the trainer replaces."""


def kimi_with_adam() -> Any:
    """Return the recipe without Muon, which needs the package emerging_optimizers; in 0.6 it has Adam."""
    build = kimi_k2.kimi_k2_pretrain_config
    return build(**({"optimizer_type": "adam"} if "optimizer_type" in signature(build).parameters else {}))


def main() -> None:
    name, steps, *overrides = sys.argv[1:]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    with cpu_as_cuda([*cpu_patches(), *PATCHES]):
        AutoBridge.from_hf_pretrained = classmethod(_tiny_from_hub(AutoBridge.from_hf_pretrained))
        function = kimi_with_adam if name == "kimi_k2_pretrain_config" else getattr(recipes, name)
        # Raises an exception for a name that is not there.
        config = process_config_with_overrides(function(), cli_overrides=overrides or None)
        _shrink(config.model)
        _train_on_cpu(config, int(steps))
        pretrain(config, forward_step)


def _tiny_from_hub(original: Any) -> Any:
    def from_hub(_class: type, path: str, **_: Any) -> Any:
        (owner,) = [owner for owner in HUB if path.startswith(owner)]
        folder = Path("hub")
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({**OF_HUB, **HUB[owner]}))
        return original(folder)

    return from_hub


def _shrink(model: Any) -> None:
    """Make a model small, and replace kernels for GPUs."""
    # Megatron-Bridge 0.6 has other names for both fields of a hybrid.
    pattern_field, stack_field = ("hybrid_override_pattern", "mamba_stack_spec")
    if getattr(model, "hybrid_layer_pattern", None):
        pattern_field, stack_field = ("hybrid_layer_pattern", "hybrid_stack_spec")
    pattern = getattr(model, pattern_field, None)
    sizes: dict[str, Any] = {}
    if model.num_layers > OF_HUB["num_hidden_layers"]:
        sizes |= IN_CODE | (EXPERTS_IN_CODE if model.num_moe_experts else {})
    if sizes and getattr(model, "multi_latent_attention", False):
        sizes |= LATENT_IN_CODE
    if pattern:
        kinds = "".join(dict.fromkeys(pattern))  # a layer of each kind
        stack = hybrid_stack(chunk_size=16)
        if "E" in kinds:
            experts = get_moe_module_spec(use_te=False, num_experts=4, moe_grouped_gemm=False)
            layer = TransformerLayerSubmodules(
                pre_mlp_layernorm=stack.submodules.mlp_layer.submodules.pre_mlp_layernorm,
                mlp=experts,
                mlp_bda=stack.submodules.mlp_layer.submodules.mlp_bda,
            )
            stack.submodules.moe_layer = ModuleSpec(module=MoETransformerLayer, submodules=layer)
        sizes |= MAMBA_IN_CODE | {pattern_field: kinds, "num_layers": len(kinds), stack_field: stack}
    else:
        sizes["transformer_layer_spec"] = mixture_layers
    if getattr(model, "mtp_hybrid_override_pattern", None):
        sizes |= {"mtp_hybrid_override_pattern": None, "mtp_num_layers": None}
    kernels = devices.model_options("cpu") | without_kernels(type(model))
    for field, value in (kernels | WITHOUT_GPUS | sizes).items():
        getattr(model, field)  # raises AttributeError for a name that is not there
        setattr(model, field, value)


def _train_on_cpu(config: Any, steps: int) -> None:
    """Replace what of the training is for GPUs or long."""
    config.train.train_iters = steps
    config.train.global_batch_size, config.train.micro_batch_size, config.train.eval_iters = 2, 1, 0
    config.scheduler.lr_warmup_iters, config.scheduler.lr_decay_iters = 1, steps
    config.dataset.seq_length, config.dataset.num_workers = LENGTH, 0
    config.dataset.skip_getting_attention_mask_from_dataset = False
    config.tokenizer.tokenizer_type, config.tokenizer.vocab_size = "NullTokenizer", VOCABULARY - 1
    config.mixed_precision = config.comm_overlap = None
    config.rng.te_rng_tracker = config.optimizer.bf16 = False
    config.optimizer.optimizer = "adam"
    for owner in (config.optimizer, config.ddp):
        owner.use_distributed_optimizer = False
    config.optimizer.use_precision_aware_optimizer = False
    for kind in ("main_grads", "main_params", "exp_avg", "exp_avg_sq"):
        setattr(config.optimizer, f"{kind}_dtype", torch.float32)
    config.ddp.overlap_grad_reduce = config.ddp.overlap_param_gather = False
    config.ddp.average_in_collective = False
    config.dist.distributed_backend, config.dist.use_gloo_process_groups = "gloo", True
    config.checkpoint.save = config.checkpoint.load = None
    config.checkpoint.async_save = False
    config.logger.log_interval, config.logger.tensorboard_dir = 1, None


if __name__ == "__main__":
    main()
