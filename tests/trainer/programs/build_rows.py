"""Build planned runs as NeMo would on GPUs, but without weights: `build_rows.py ASKED.json BUILT.json`.

The output has for each run all that the trainer sets in NeMo, flat, and some of what NeMo makes of it.
Each model is built once in every pipeline stage and virtual stage, to count parameters, and once whole, to
count its matrix products.
"""

import copy
import inspect
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trainer.environment import filter_log, heavy_imports

with heavy_imports():
    from assembled import Assembled, assembled
    from meta_models import META, matrix_product_flops, parameters
    from nemo.lightning._strategy_lib import set_model_parallel_attributes
    from nemo.lightning.pytorch.plugins import MegatronMixedPrecision

    from trainer import gpu_performance
    from trainer.cpu.cpu_as_cuda import cpu_as_cuda
    from trainer.errors import TrainerError
    from trainer.run import read_run
    from trainer.spec import PlannedRun


NOT_IN_NEMO_2_2 = (
    *("fp8_recipe", "fp8_param_gather", "first_last_layers_bf16", "fp4", "fp4_recipe"),
    *("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "reuse_grad_buf_for_mxfp8_param_ag"),
)
"""Later arguments of MegatronMixedPrecision: mixed_precision.py of NVIDIA/NeMo v2.2.1 has none of them."""


def built(run: PlannedRun, gpus_per_node: int) -> dict[str, Any]:
    """Return the settings of the run as NeMo's own objects have them."""
    whole = assembled(run, gpus_per_node)
    return {
        "settings": whole.settings(),
        "precision_of_nemo_2_2": precision_of_nemo_2_2(run),
        "graphs_of_connected_model": connected(whole).config.cuda_graph_impl,
    }


def connected(whole: Assembled) -> Any:
    """Return a copy of the model with its config checked with the strategy's fields, as when training begins.

    These are the first steps of NeMo's MegatronStrategy.connect.
    """
    strategy, model = whole.trainer["strategy"], copy.copy(whole.model)
    model.config = copy.copy(model.config)
    strategy.pipeline_dtype = whole.plugin(MegatronMixedPrecision).dtype_config.pipeline_dtype
    set_model_parallel_attributes(model, strategy.parallelism)
    return model


def precision_of_nemo_2_2(run: PlannedRun) -> dict[str, Any] | str:
    """Return the number format's arguments with NeMo 2.2's signature, or the sentence of the refusal."""

    def stand_in(**options: Any) -> dict[str, Any]:
        return {name: str(value) for name, value in options.items()}

    there = inspect.signature(MegatronMixedPrecision).parameters.values()
    older = [field for field in there if field.name not in NOT_IN_NEMO_2_2]
    stand_in.__signature__ = inspect.Signature(older)  # type: ignore[attr-defined]
    with mock.patch.object(gpu_performance, "MegatronMixedPrecision", stand_in):
        try:
            (made,) = gpu_performance.precision(run)
        except TrainerError as error:
            return str(error)
    return dict(made)


def main(runs_path: str, built_path: str) -> None:
    torch.set_num_threads(1)
    filter_log()
    logging.getLogger("nemo_logger").setLevel(logging.WARNING)
    runs = json.loads(Path(runs_path).read_text())
    counted: dict[Any, int] = {}
    flops: dict[Any, int] = {}
    rows = []
    with cpu_as_cuda(), tempfile.TemporaryDirectory() as folder:
        torch.cuda.current_device = lambda: META  # allocate nothing for Megatron
        for content in runs:
            path = Path(folder, "run.json")
            path.write_text(json.dumps(content))
            run = read_run(path)
            model = run.recipe.model
            if model not in counted:
                counted[model] = parameters(model, run.recipe.parallelism)
                flops[model] = matrix_product_flops(model)
            rows.append(
                {
                    **built(run, content["recipe"]["gpus_per_node"]),
                    "parameters": counted[model],
                    "matrix_product_flops": flops[model],
                }
            )
    Path(built_path).write_text(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
