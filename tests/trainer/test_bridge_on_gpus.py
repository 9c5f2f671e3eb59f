"""What Megatron-Bridge is given on GPUs, held to its own recipes of the same models, without a GPU."""

import dataclasses
import json
from typing import Any
from unittest.mock import ANY

import pytest

from steptime.recipes.models import LatentAttention, ModelShape, MoeShape, Parallelism, Run
from steptime.recipes.planning import PlanRequest, plan

from .jobs import ROOT

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

PROGRAM = ROOT / "tests" / "trainer" / "programs" / "bridge_configuration.py"


@dataclasses.dataclass(frozen=True)
class Request:
    """A run, and the recipe of Megatron-Bridge that it is compared with, if any."""

    run: Run
    recipe: str | None = None
    hub: dict[str, Any] = dataclasses.field(default_factory=dict)


def on_gpus(
    size="8b",
    *,
    workload="llama3.1",
    printed_dtype="bf16",
    gpus=8,
    model=None,
    parallelism=None,
    dtype="bf16",
    **settings,
):
    """Return a row of a document for Megatron-Bridge, with these changes."""
    run = plan(
        PlanRequest(workload=workload, gpu_type="h100", size=size, gpus=str(gpus), dtype=printed_dtype)
    ).runs[0]
    changed = {"backend": "megatron_bridge", "dtype": dtype}
    changed |= {"model": model} if model else {}
    changed |= {"parallelism": parallelism} if parallelism else {}
    trainer = run.performance.trainer.model_copy(update={"cross_entropy_fusion_impl": "te", **settings})
    performance = run.performance.model_copy(update={"trainer": trainer})
    return run.model_copy(
        update={"recipe": run.recipe.model_copy(update=changed), "performance": performance}
    )


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 8192,
    },
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
"""What Meta's `config.json` of Llama 3.1 8B and 70B have in common."""
SIZES = {
    "8b": {
        **{"hidden_size": 4096, "intermediate_size": 14336},
        **{"num_hidden_layers": 32, "num_attention_heads": 32},
    },
    "70b": {
        **{"hidden_size": 8192, "intermediate_size": 28672},
        **{"num_hidden_layers": 80, "num_attention_heads": 64},
    },
}
QWEN_3 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
"""The `config.json` of Qwen3-30B-A3B."""


DIFFERENT = {
    # how NeMo's backend trains, too
    "ddp.grad_reduce_in_fp32": [False, True],
    "mixed_precision.grad_reduce_in_fp32": [False, True],
    "optimizer.adam_eps": [1e-5, 1e-8],
    "optimizer.min_lr": [0.0, 3e-5],
    # two words for the same
    "model.attention_backend": ["AttnBackend.auto", None],
    "model.offload_modules": [[], None],
    # not used on GPUs
    "dist.use_gloo_process_groups": [False, True],
}
"""Fields of every model in which steptime differs from a recipe."""
FROM_HUB = {"model.hf_model_id": [None, "hub"]}
"""And those of a recipe that reads the model's configuration from the hub."""
LLAMA_DIFFERENT = {
    "8b": {
        # as the document's rows overlap communication, and this recipe leaves it to Megatron
        "ddp.bucket_size": [128 * 2**20, None],
        "optimizer.overlap_param_gather": [True, False],
        "model.batch_p2p_comm": [False, True],
        "model.wgrad_deferral_limit": [-1, 0],
    },
    "70b": {
        # what the document's launch script adds
        "ddp.delay_wgrad_compute": [False, None],
        "model.defer_embedding_wgrad_compute": [True, False],
        "model.wgrad_deferral_limit": [22, -1],
        "optimizer.overlap_param_gather_with_optimizer_step": [True, False],
        # the recipe's mistake: its data have 8,192 tokens, too
        "model.seq_length": [8192, 131072],
    },
}
MIXTURE_DIFFERENT = {
    # kernels that upstream's performance scripts add to the recipe, and balanced experts
    "model.apply_rope_fusion": [True, False],
    "model.bias_activation_fusion": [True, False],
    "model.bias_dropout_fusion": [True, False],
    "model.persist_layer_norm": [True, False],
    "model.moe_router_force_load_balancing": [True, False],
    # written otherwise, or without a meaning without FSDP or deferral
    "model.moe_layer_freq": [[1] * 48, 1],
    "model.wgrad_deferral_limit": [-1, 0],
    "ddp.data_parallel_sharding_strategy": ["no_shard", "optim_grads_params"],
    "optimizer.overlap_param_gather": [True, False],
}
LATENT_DIFFERENT = {
    "model.moe_router_force_load_balancing": [True, False],  # balanced experts, as in upstream's scripts
    "model.gradient_accumulation_fusion": [False, True],  # where its kernels are found
    # how layers are spread, and the vocabulary filled up
    "model.num_layers_in_first_pipeline_stage": [4, None],
    "model.num_layers_in_last_pipeline_stage": [1, None],
    "model.pipeline_model_parallel_layout": [None, ANY],
    "model.make_vocab_size_divisible_by": [128, 1280],
    "model.kv_channels": [56, 64],  # not used with latent attention
    # states of the optimizer in bf16
    "optimizer.exp_avg_dtype": ["torch.float32", "torch.bfloat16"],
    "optimizer.exp_avg_sq_dtype": ["torch.float32", "torch.bfloat16"],
    "optimizer.main_grads_dtype": ["torch.float32", "torch.bfloat16"],
    "optimizer.use_precision_aware_optimizer": [False, True],
}
HYBRID_DIFFERENT = {
    # the document's launch script overlaps no communication
    "ddp.bucket_size": [None, 128 * 2**20],
    "ddp.delay_wgrad_compute": [False, None],
    "ddp.overlap_param_gather": [False, True],
    "optimizer.overlap_param_gather": [False, True],
    "model.tp_comm_overlap": [False, True],
    "model.wgrad_deferral_limit": [0, -1],
    "model.cross_entropy_fusion_impl": ["te", "native"],
    # what a workload's file sets
    "mixed_precision.first_last_layers_bf16": [False, True],
    "model.first_last_layers_bf16": [False, True],
    # of experts, of which this model has none
    "model.moe_aux_loss_coeff": [0.0, 0.0001],
    "model.moe_grouped_gemm": [False, True],
    "model.moe_permute_fusion": [False, True],
    "model.moe_router_dtype": [None, "fp32"],
    "model.moe_router_enable_expert_bias": [False, True],
    "model.moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"],
    "model.moe_router_score_function": ["softmax", "sigmoid"],
    "model.moe_shared_expert_overlap": [False, True],
    "model.moe_token_dispatcher_type": ["allgather", "alltoall"],
    # not used without pipeline stages, or taken from the tokenizer
    "model.batch_p2p_comm": [True, False],
    "model.vocab_size": [131072, None],
}
MIXTURE = ModelShape(
    **{"architecture": "gpt", "gated_linear_unit": True, "num_layers": 48, "hidden_size": 2048},
    **{"ffn_hidden_size": 6144, "num_attention_heads": 32, "num_query_groups": 4, "kv_channels": 128},
    **{"vocab_size": 151936, "seq_length": 4096},
    moe=MoeShape(num_moe_experts=128, moe_router_topk=8, moe_ffn_hidden_size=768),
    megatron_fields={
        **{"qk_layernorm": True, "rotary_base": 1000000},
        **{"layernorm_epsilon": 1e-6, "moe_aux_loss_coeff": 0.001},
    },
)
LATENT = ModelShape(
    **{"architecture": "gpt", "gated_linear_unit": True, "num_layers": 61, "hidden_size": 7168},
    **{"ffn_hidden_size": 18432, "num_attention_heads": 128, "num_query_groups": 128},
    **{"vocab_size": 129280, "seq_length": 4096, "mtp_num_layers": 1},
    moe=MoeShape(
        num_moe_experts=256,
        moe_router_topk=8,
        moe_ffn_hidden_size=2048,
        moe_shared_expert_intermediate_size=2048,
        num_dense_layers=3,
        moe_router_score_function="sigmoid",
        moe_router_load_balancing_type="seq_aux_loss",
    ),
    mla=LatentAttention(
        q_lora_rank=1536, kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128
    ),
    megatron_fields={
        **{"qk_layernorm": True, "layernorm_epsilon": 1e-6, "moe_router_dtype": "fp32"},
        **{"moe_router_num_groups": 8, "moe_router_group_topk": 4, "moe_aux_loss_coeff": 0.0001},
        **{"moe_router_topk_scaling_factor": 2.5, "moe_router_enable_expert_bias": True},
        **{"moe_router_pre_softmax": True, "moe_router_bias_update_rate": 0.001},
        **{"init_method_std": 0.006, "mscale_all_dim": 1.0},
    },
)
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    **{"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048},
    **{"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128},
    **{"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8},
    **{"first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5},
    **{"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True},
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
    **{"v_head_dim": 128, "vocab_size": 129280, "max_position_embeddings": 163840, "rope_theta": 10000},
    "rope_scaling": {
        **{"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0},
        **{"original_max_position_embeddings": 4096, "type": "yarn"},
    },
    **{"rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"},
}
"""The `config.json` of DeepSeek-V3."""
ON_8 = Parallelism(data=1, tensor=4, pipeline=2, expert=4, expert_tensor=1)
REQUESTS = {
    **{
        size: Request(on_gpus(size, gpus=gpus), f"llama31_{size}_pretrain_config", LLAMA | SIZES[size])
        for size, gpus in (("8b", 8), ("70b", 64))
    },
    "mixture": Request(
        on_gpus(
            model=MIXTURE,
            parallelism=ON_8,
            recompute_granularity="full",
            recompute_method="uniform",
            recompute_num_layers=1,
            moe_flex_dispatcher_backend="deepep",
        ),
        "qwen3_30b_a3b_pretrain_config",
        QWEN_3,
    ),
    "latent attention": Request(
        on_gpus(
            model=LATENT,
            moe_flex_dispatcher_backend="hybridep",
            recompute_granularity="selective",
            recompute_modules=("core_attn",),
            parallelism=Parallelism(
                **{"data": 32, "tensor": 2, "pipeline": 16, "expert": 64, "expert_tensor": 1},
                **{"first_stage_layers": 4, "last_stage_layers": 1},
            ),
        ),
        "deepseek_v3_pretrain_config",
        DEEPSEEK_V3,
    ),
    "hybrid": Request(
        on_gpus(
            "56b",
            workload="nemotron-h",
            printed_dtype="fp8",
            gpus=64,
            dtype="fp8_cs",
            fp8_recipe="current",
        ),
        "nemotronh_56b_pretrain_config",
    ),
    "graphs": Request(
        on_gpus(
            model=MIXTURE.model_copy(update={"window_size": 128, "window_attn_skip_freq": 2}),
            parallelism=Parallelism(data=8, expert=8),
            dtype="fp8_mx",
            fp8_recipe="mxfp8",
            cuda_graphs=True,
            cuda_graph_impl="transformer_engine",
            cuda_graph_scope=("attn", "moe_router"),
            recompute_granularity="selective",
            recompute_modules=("moe_act",),
            moe_flex_dispatcher_backend="hybridep",
            overlap_moe_expert_parallel_comm=True,
        )
    ),
    "fsdp": Request(
        on_gpus(
            parallelism=Parallelism(data=8),
            dtype="nvfp4",
            fp8_recipe="nvfp4",
            use_megatron_fsdp=True,
            average_in_collective=False,
            comm_overlap_callback=False,
        )
    ),
    "current": Request(on_gpus(dtype="fp8_cs", fp8_recipe="current")),
    "blockwise": Request(on_gpus(dtype="fp8_ss", fp8_recipe="blockwise")),
}


@pytest.fixture(scope="module")
def told(warm_bridge, tmp_path_factory):
    """Return what the program tells of each request."""
    folder = tmp_path_factory.mktemp("on_gpus")
    requests = [
        {"run": request.run.model_dump(mode="json"), "recipe": request.recipe, "hub": request.hub}
        for request in REQUESTS.values()
    ]
    (folder / "requests.json").write_text(json.dumps(requests), encoding="utf-8")
    done = warm_bridge.run(str(PROGRAM), ["requests.json"], folder=folder)
    assert done.exit_code == 0, done.log
    return dict(zip(REQUESTS, json.loads(done.log.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("size", ["8b", "70b"])
def test_a_dense_model_differs_from_upstreams_recipe_in_known_fields(told, size):
    assert told[size] == DIFFERENT | FROM_HUB | LLAMA_DIFFERENT[size]


def test_a_mixture_differs_from_upstreams_recipe_in_known_fields(told):
    assert told["mixture"] == DIFFERENT | FROM_HUB | MIXTURE_DIFFERENT


def test_latent_attention_differs_from_upstreams_recipe_in_known_fields(told):
    alike = {"ddp.grad_reduce_in_fp32", "mixed_precision.grad_reduce_in_fp32"}
    different = {name: pair for name, pair in DIFFERENT.items() if name not in alike}
    assert told["latent attention"] == different | FROM_HUB | LATENT_DIFFERENT


def test_a_hybrid_model_differs_from_upstreams_recipe_in_known_fields(told):
    assert told["hybrid"] == DIFFERENT | HYBRID_DIFFERENT


def test_formats_are_those_of_upstream(told):
    names = ("fp8", "fp8_recipe", "fp4", "fp8_param_gather", "first_last_layers_bf16")
    formats = {
        kind: [told[kind][f"mixed_precision.{name}"] for name in names]
        for kind in ("graphs", "fsdp", "current", "blockwise")
    }
    assert formats == {
        "graphs": ["e4m3", "mxfp8", None, True, False],
        "fsdp": [None, "tensorwise", "e2m1", False, False],
        "current": ["hybrid", "tensorwise", None, True, False],
        "blockwise": ["hybrid", "blockwise", None, False, False],
    }
    assert told["graphs"]["ddp.reuse_grad_buf_for_mxfp8_param_ag"] is True


def test_graphs_dispatchers_recomputation_and_windows_reach_the_model(told):
    fields = {name.removeprefix("model."): value for name, value in told["graphs"].items()}
    assert (fields["cuda_graph_impl"], fields["use_te_rng_tracker"]) == ("transformer_engine", True)
    assert [str(scope).rpartition(".")[2] for scope in fields["cuda_graph_scope"]] == ["attn", "moe_router"]
    assert (fields["moe_token_dispatcher_type"], fields["moe_flex_dispatcher_backend"]) == (
        "flex",
        "hybridep",
    )
    assert (fields["recompute_granularity"], fields["recompute_modules"]) == ("selective", ["moe_act"])
    assert (fields["overlap_moe_expert_parallel_comm"], fields["delay_wgrad_compute"]) == (True, True)
    assert (fields["window_size"], fields["window_attn_skip_freq"]) == ([128, 0], 2)


def test_fsdp_shards_all_and_starts_without_weights_in_memory(told):
    fsdp = told["fsdp"]
    assert (fsdp["ddp.use_megatron_fsdp"], fsdp["dist.use_megatron_fsdp"]) == (True, True)
    assert fsdp["ddp.data_parallel_sharding_strategy"] == "optim_grads_params"
    assert fsdp["model.init_model_with_meta_device"] is True
