"""Training in the image of release 24.11, which has NeMo 1: its own program, set up through Hydra.

The release ran `megatron_gpt_pretraining.py` of the image with a config of its own. Here every value is an
override of the program's default config: the plan's sizes, and for the rest those of the release
(github.com/NVIDIA/dgxc-benchmarking, v24.11.1, nemotron). Two differ: no tokenizer file is needed, since all
tokens are synthetic (bytes are the tokenizer, the vocabulary has the planned size), and nothing is validated.
"""

import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.ending import Ending
from trainer.errors import TrainerError
from trainer.launch import Launch
from trainer.run import PlannedRun, Recipe

IMAGES = ("nemo:24.09",)
"""Name and tag of the images that have NeMo 1, in whatever registry."""
PROGRAM = Path("/opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py")


def has_nemo_1(recipe: Recipe) -> bool:
    """Whether the recipe's image has NeMo 1."""
    return recipe.image is not None and recipe.image.rpartition("/")[2] in IMAGES


def train(run: PlannedRun, launch: Launch, output: Path, ending: Ending) -> None:
    """Run NeMo 1's program in this process, to its end; every rank calls this.

    What it set up is recorded afterwards: it has no place to do so when training starts.

    Raises:
        TrainerError: the program is not there, or does not train this architecture or mode so.
    """
    arguments = list(overrides(run, launch, output))
    if not PROGRAM.is_file():
        raise TrainerError(f"{PROGRAM} is not there: image {run.recipe.image} should have NeMo 1.")
    sys.path.append(str(PROGRAM.parents[3]))  # as upstream has it; the image need not have installed NeMo
    told = sys.argv
    sys.argv = [str(PROGRAM), *arguments]
    try:
        ending.progress.tells_steps = False
        runpy.run_path(str(PROGRAM), run_name="__main__")
    finally:
        sys.argv = told
    from trainer import ranks, records  # torch and Megatron, which the program has loaded

    node_names = ending.progress.node_names = ranks.node_names()
    if launch.rank == 0:
        records.emit("start", records.started(run, ranks.parallelism(), "cuda", node_names=node_names))


def overrides(run: PlannedRun, launch: Launch, output: Path) -> Iterator[str]:
    """The command line: `++key=value` for each value, which replaces what is there or adds it.

    Raises:
        TrainerError: NeMo 1 is not set up for this architecture or mode here.
    """
    if run.recipe.model.architecture != "nemotron4":
        raise TrainerError(
            f"NeMo 1 (image {run.recipe.image}) is set up for nemotron4 only, not for "
            f"{run.recipe.model.architecture}: choose an image with NeMo 2."
        )
    if run.mode.startswith("checkpoint"):
        raise TrainerError(
            f"NeMo 1 (image {run.recipe.image}) saves and loads no checkpoint here: choose an image with "
            "NeMo 2."
        )
    for key, value in _flat(_config(run, launch, output.absolute())):
        yield f"++{key}={_as_hydra(value)}"


def _config(run: PlannedRun, launch: Launch, output: Path) -> dict[str, Any]:
    recipe = run.recipe
    return {
        "trainer": {
            "devices": launch.local_world_size,
            "num_nodes": launch.nodes,
            "precision": "bf16",
            "max_epochs": None,
            "max_steps": run.max_steps,
            "log_every_n_steps": 1,
            "val_check_interval": run.max_steps,
            "limit_val_batches": 0,
            "num_sanity_val_steps": 0,
            "enable_checkpointing": False,
        },
        "exp_manager": {
            "explicit_log_dir": str(output / "results"),
            "resume_if_exists": False,
            "create_checkpoint_callback": False,
            "log_step_timing": True,
            "step_timing_kwargs": {"sync_cuda": True},
        },
        "model": {**_shape(recipe), **_spread(run), **_kernels(run), **_data(run, output), **_profile(run)},
    }


def _shape(recipe: Recipe) -> dict[str, Any]:
    model = recipe.model
    return {
        "encoder_seq_length": model.seq_length,
        "max_position_embeddings": model.seq_length,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "override_vocab_size": model.vocab_size,
        "init_method_std": 0.0063,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "apply_query_key_layer_scaling": True,
        "normalization": "layernorm1p",
        "layernorm_zero_centered_gamma": True,
        "bias": False,
        "activation": "squared-relu",
        "position_embedding_type": "rope",
        "rotary_percentage": 0.5,
        "share_embeddings_and_output_weights": False,
    }


def _spread(run: PlannedRun) -> dict[str, Any]:
    recipe, parallelism = run.recipe, run.recipe.parallelism
    interleaved = parallelism.virtual_pipeline is not None
    return {
        "micro_batch_size": recipe.micro_batch_size,
        "global_batch_size": recipe.global_batch_size,
        "tensor_model_parallel_size": parallelism.tensor,
        "pipeline_model_parallel_size": parallelism.pipeline,
        "virtual_pipeline_model_parallel_size": parallelism.virtual_pipeline,
        "context_parallel_size": parallelism.context,
        "sequence_parallel": parallelism.tensor > 1,
        "overlap_p2p_comm": interleaved,
        "batch_p2p_comm": not interleaved,
        "ub_tp_comm_overlap": run.overlaps,
        "optim": {
            "name": "distributed_fused_adam",
            "bucket_cap_mb": 50,
            "grad_sync_dtype": "bf16",
            "dtype": "bf16",
            "overlap_grad_sync": True,
            "overlap_param_sync": True,
            "contiguous_grad_buffer": True,
            "lr": 1e-4,
            "weight_decay": 0.1,
            "betas": [0.9, 0.95],
            "sched": {"min_lr": 1e-5},
        },
    }


def _kernels(run: PlannedRun) -> dict[str, Any]:
    fp8 = run.recipe.dtype == "fp8"
    pipelined = run.recipe.parallelism.pipeline > 1
    return {
        "mcore_gpt": True,
        "transformer_engine": True,
        "megatron_amp_O2": True,
        "gradient_accumulation_fusion": True,
        "bias_activation_fusion": False,
        "apply_rope_fusion": True,
        "cross_entropy_loss_fusion": True,
        "activations_checkpoint_granularity": "selective",
        "defer_embedding_wgrad_compute": pipelined,
        "wgrad_deferral_limit": 22,
        "gc_interval": 12,
        "fp8": fp8,
        "fp8_hybrid": True,
        "fp8_params": fp8,
        "fp8_wgrad": True,
    }


def _data(run: PlannedRun, output: Path) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "tokenizer": {"library": "byte-level", "type": None},
        "data": {
            "data_impl": "mock",
            "data_prefix": [],
            "splits_string": "98,1,1",
            "seq_length": run.recipe.model.seq_length,
            "index_mapping_dir": str(output / "index_mapping"),
        },
    }


def _profile(run: PlannedRun) -> dict[str, Any]:
    if run.profile is None:
        return {}
    window = run.profile
    return {
        "nsys_profile": {
            "enabled": True,
            "start_step": window.first_step,
            "end_step": window.last_step,
            "ranks": window.ranks,
        }
    }


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _as_hydra(value: Any) -> str:
    """A value in the grammar of Hydra's overrides; text is always quoted, whatever is in it."""
    if value is None:
        return "null"
    if isinstance(value, str):
        # A backslash is one, unless it stands before a quote or the end.
        return "'" + re.sub(r"(\\*)('|$)", lambda at: at[1] * 2 + "\\'" * bool(at[2]), value) + "'"
    if isinstance(value, list):
        return f"[{','.join(map(_as_hydra, value))}]"
    return str(value)
