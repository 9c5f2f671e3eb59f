"""What makes steps fast on GPUs: number formats, CUDA graphs, and communication beside matrix products.

The values are those of NeMo's own performance recipes (nemo.collections.llm.recipes, `precision` and
`tp_overlap_configs`), with which the documents' step times were measured.
"""

from typing import Any

import torch
from nemo.collections.llm.recipes.tp_overlap_configs import userbuffers
from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback
from nemo.lightning.pytorch.plugins import MegatronMixedPrecision

from trainer.run import BLACKWELL, PlannedRun, Recipe, Settings

_DELAYED = {"fp8": "hybrid", "fp8_margin": 0, "fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max"}
_CURRENT = {
    "fp8": "hybrid",
    "fp8_recipe": "tensorwise",
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
}


def precision(run: PlannedRun) -> list[MegatronMixedPrecision]:
    """Lightning plugins for the number format; fp32 needs none.

    FP8 is in the matrix products of Transformer Engine's layers; everything else is as with bf16.
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
    if settings.fp8_recipe == "delayed":  # the default: older releases of NeMo have no argument for it
        options: dict[str, Any] = dict(_DELAYED)
    else:
        options = {**_CURRENT, "first_last_layers_bf16": settings.first_last_layers_bf16}
    return {**options, "fp8_param_gather": True}


def graph_options(run: PlannedRun) -> dict[str, Any]:
    """Fields of Megatron's TransformerConfig for CUDA graphs."""
    return {"enable_cuda_graph": True, "use_te_rng_tracker": True} if run.records_graphs else {}


def communication_overlap(run: PlannedRun, *, bootstrap: str | None = None) -> MegatronCommOverlapCallback:
    """NeMo's callback for what overlaps: communication of tensor, pipeline and data parallel ranks.

    Args:
        run: what is trained.
        bootstrap: how tensor-parallel ranks exchange the addresses of their buffers, `nccl` or `mpi`; None
            leaves it to Transformer Engine.
    """
    return MegatronCommOverlapCallback(
        tp_comm_overlap=run.overlaps,
        tp_comm_overlap_cfg=tuned_buffers(run.recipe) if run.overlaps else None,
        tp_comm_bootstrap_backend=bootstrap,
    )


def tuned_buffers(recipe: Recipe) -> Any | None:
    """How NeMo splits each layer's communication for this shape; None where it has no such entry.

    Transformer Engine then uses its own defaults. As in NeMo's scripts, GB200 and GB300 take B200's entries,
    and a sequence that is cut (context parallel) takes the entry of a whole one where there is none for it.
    """
    parallelism, model = recipe.parallelism, recipe.model
    gpu_type = "b200" if recipe.gpu_type in BLACKWELL else recipe.gpu_type
    layer = f"{recipe.dtype}_{gpu_type}_h{model.hidden_size}_tp{parallelism.tensor}"
    batch = f"mbs{recipe.micro_batch_size}_seqlen{model.seq_length}"
    whole = getattr(userbuffers, f"userbuffers_{layer}_{batch}", None)
    return getattr(userbuffers, f"userbuffers_{layer}_cp{parallelism.context}_{batch}", whole)
