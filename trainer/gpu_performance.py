"""Speed options on GPUs: number formats, fused kernels, CUDA graphs, overlap of communication and compute.

The plan says which of them a run uses (`Settings`). The number formats are those of
nemo.collections.llm.recipes.precision with the changes that NeMo's performance scripts make, which are the
same in all supported releases.
"""

from typing import Any

import torch
from lightning.pytorch import Callback
from megatron.core.transformer import TransformerConfig
from nemo.collections.llm.recipes.tp_overlap_configs import userbuffers
from nemo.lightning.pytorch.callbacks.garbage_collection import GarbageCollectionCallback
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.plugins import MegatronMixedPrecision

from trainer.spec import NEMO, PlannedRun, Settings
from trainer.versions import accepted, has_option, tuned_buffers


def precision(run: PlannedRun) -> list[MegatronMixedPrecision]:
    """Return Lightning's plugin for the planned number format; an empty list for fp32.

    FP8 applies to the matrix products of Transformer Engine's layers; everything else is as with bf16.
    """
    if run.recipe.dtype == "fp32":
        return []
    return [
        MegatronMixedPrecision(
            precision="bf16-mixed",
            params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16,
            autocast_enabled=False,
            grad_reduce_in_fp32=False,
            **_fp8_options(run.settings),
        )
    ]


def _fp8_options(settings: Settings) -> dict[str, Any]:
    if settings.fp8_recipe is None:
        return {}
    if settings.fp8_recipe == "delayed":  # the default, for which NeMo 2.2 has no name
        options = accepted(
            MegatronMixedPrecision,
            fp8="hybrid",
            fp8_margin=0,
            fp8_amax_history_len=1024,
            fp8_amax_compute_algo="max",
        )
    else:
        options = accepted(
            MegatronMixedPrecision,
            fp8="hybrid",
            fp8_recipe="tensorwise",
            first_last_layers_bf16=settings.first_last_layers_bf16,
            num_layers_at_start_in_bf16=1,
            num_layers_at_end_in_bf16=1,
        )
    if has_option(MegatronMixedPrecision, "fp8_param_gather"):
        return options | accepted(MegatronMixedPrecision, fp8_param_gather=True)
    return options | accepted(MegatronMixedPrecision, fp8_params=True)  # NeMo 2.2


def model_options(run: PlannedRun) -> dict[str, Any]:
    """Return the fields of Megatron's TransformerConfig for CUDA graphs and fused kernels."""
    options: dict[str, Any] = {}
    if run.settings.cuda_graphs:
        # Megatron-Core 0.15 has a new name; its old one does not survive that NeMo checks a config twice.
        if has_option(TransformerConfig, "cuda_graph_impl"):
            options |= accepted(TransformerConfig, cuda_graph_impl="local", use_te_rng_tracker=True)
        else:
            options |= accepted(TransformerConfig, enable_cuda_graph=True, use_te_rng_tracker=True)
    if run.settings.cross_entropy_fusion_impl != "native":
        options |= accepted(
            TransformerConfig, cross_entropy_fusion_impl=run.settings.cross_entropy_fusion_impl
        )
    return options


def callbacks(run: PlannedRun, *, bootstrap: str | None = None) -> list[Callback]:
    """Return NeMo's callbacks for communication overlap and for garbage collection on all ranks at once.

    Args:
        run: the planned run.
        bootstrap: how tensor-parallel ranks exchange the addresses of their buffers, `nccl` or `mpi`; None
            leaves it to Transformer Engine.
    """
    settings = run.settings
    callbacks: list[Callback] = []
    if settings.gc_interval is not None:
        callbacks.append(
            GarbageCollectionCallback(
                gc_interval_train=settings.gc_interval, gc_interval_val=settings.gc_interval
            )
        )
    if settings.comm_overlap_callback or run.settings.tp_comm_overlap:
        callbacks.append(
            MegatronCommOverlapCallback(
                tp_comm_overlap=run.settings.tp_comm_overlap,
                tp_comm_overlap_cfg=tuned_buffers(userbuffers, NEMO, settings.tp_comm_overlap_cfg)
                if run.settings.tp_comm_overlap
                else None,
                tp_comm_bootstrap_backend=bootstrap,
                overlap_param_gather_with_optimizer_step=settings.overlap_param_gather_with_optimizer_step,
                defer_embedding_wgrad_compute=settings.defer_embedding_wgrad_compute,
                wgrad_deferral_limit=settings.wgrad_deferral_limit,
            )
        )
    return callbacks
