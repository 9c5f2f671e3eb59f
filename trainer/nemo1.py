"""Training with NeMo 1 in the image nemo:24.09: NeMo's own program, configured through Hydra.

Release 24.11 of NVIDIA's benchmarking recipes runs the image's `megatron_gpt_pretraining.py` with a config
file that is not in the image. (The image's /opt/NeMo-Framework-Launcher has the config of another run of this
model.) The YAML file beside this module has the values of the release's file, and names the differences.
Values that the plan determines are added as overrides.
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
from trainer.spec import PlannedRun

PROGRAM = Path("/opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py")
CONFIG = Path(__file__).with_name("nemo1-nemotron4-340b.yaml")


def train(run: PlannedRun, launch: Launch, output: Path, ending: Ending) -> None:
    """Train with NeMo 1's program in this process; every rank calls this.

    The start record is printed after the training, as the program has no hook at its start.

    Raises:
        TrainerError: the program is missing, or does not support this architecture or mode.
    """
    arguments = [f"--config-path={CONFIG.parent}", f"--config-name={CONFIG.stem}"]
    arguments += overrides(run, launch, output)
    if not PROGRAM.is_file():
        raise TrainerError(f"{PROGRAM} is missing in image {run.recipe.image}: choose an image with NeMo 1.")
    sys.path.insert(0, str(PROGRAM.parents[3]))  # as upstream has it, by PYTHONPATH
    former = sys.argv
    sys.argv = [str(PROGRAM), *arguments]
    try:
        ending.progress.notes_steps = False
        runpy.run_path(str(PROGRAM), run_name="__main__")
    finally:
        sys.argv = former
    from trainer import ranks, records  # torch and Megatron, which the program has loaded

    node_names = ending.progress.node_names = ranks.node_names()
    started = records.started(
        run, ranks.parallelism(), "cuda", node_names=node_names, numa_bound_ranks=ranks.numa_bound()
    )
    if launch.rank == 0:
        records.emit("start", started)


def overrides(run: PlannedRun, launch: Launch, output: Path) -> Iterator[str]:
    """Yield a Hydra override `++key=value` for each key of NeMo 1's config file that the plan sets.

    Raises:
        TrainerError: this architecture or mode is not supported with NeMo 1.
    """
    if run.recipe.model.architecture != "nemotron4":
        raise TrainerError(
            f"NeMo 1 (image {run.recipe.image}) is set up for nemotron4 only, not for "
            f"{run.recipe.model.architecture}: choose an image with NeMo 2."
        )
    if run.mode.startswith("checkpoint"):
        raise TrainerError(
            f"NeMo 1 (image {run.recipe.image}) is not set up for checkpoints: choose an image with NeMo 2."
        )
    for key, value in _flat(_planned(run, launch, output.absolute())):
        yield f"++{key}={_as_hydra(value)}"


def _planned(run: PlannedRun, launch: Launch, output: Path) -> dict[str, Any]:
    recipe, model = run.recipe, run.recipe.model
    fp8 = recipe.dtype == "fp8"
    return {
        "trainer": {
            "devices": launch.local_world_size,
            "num_nodes": launch.nodes,
            "max_steps": run.max_steps,
            "val_check_interval": run.max_steps,
        },
        "exp_manager": {"explicit_log_dir": str(output / "results")},
        "model": {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "ffn_hidden_size": model.ffn_hidden_size,
            "num_attention_heads": model.num_attention_heads,
            "num_query_groups": model.num_query_groups,
            "override_vocab_size": model.vocab_size,
            "encoder_seq_length": model.seq_length,
            "max_position_embeddings": model.seq_length,
            "seed": run.seed,
            "fp8": fp8,
            "fp8_params": fp8,
            **_spread(run),
            "data": {
                "seq_length": model.seq_length,
                "index_mapping_dir": str(output / "index_mapping"),
            },
            **_profile(run),
        },
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
        "ub_tp_comm_overlap": run.settings.tp_comm_overlap,
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
            "ranks": list(window.ranks),
        }
    }


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values with dotted keys."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _as_hydra(value: Any) -> str:
    """Quote a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, str):
        # A backslash is one, unless it stands before a quote or the end.
        return "'" + re.sub(r"(\\*)('|$)", lambda at: at[1] * 2 + "\\'" * bool(at[2]), value) + "'"
    if isinstance(value, list):
        return f"[{','.join(map(_as_hydra, value))}]"
    return str(value)
