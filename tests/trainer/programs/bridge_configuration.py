"""Print as JSON what runs for GPUs give Megatron-Bridge, as training completes it: `… REQUESTS.json`.

Each request has a `run`. With `recipe`, one of Megatron-Bridge's own recipe functions, only the fields that
differ from it are told, as `[ours, upstream's]`; `hub` is the model's `config.json` of the Hugging Face hub,
if the recipe reads one. No GPU is needed.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from megatron.bridge import AutoBridge, recipes
from megatron.bridge.models.deepseek import deepseek_v3_bridge
from megatron.bridge.training import comm_overlap
from megatron.bridge.training.config import ConfigContainer, runtime_config_update
from megatron.core import utils
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.transformer.moe import moe_utils
from packaging.version import Version

from trainer.bridge.training import configuration
from trainer.run import Folders, read_run

SECTIONS = ("model", "ddp", "optimizer", "mixed_precision", "rng", "dist")
KERNELS = {
    rope_utils: ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"),
    moe_utils: (
        *("fused_permute", "fused_permute_with_probs", "fused_unpermute"),
        *("fused_sort_chunks_by_index", "fused_sort_chunks_by_index_with_probs"),
    ),
}
"""Functions of Transformer Engine whose absence Megatron-Core refuses."""
ADAM = "transformer_engine.pytorch.optimizers"
"""The module whose `FusedAdam` stores states in other formats, as some recipes want it."""
APEX = "fused_weight_gradient_mlp_cuda"
"""The module without which gradients are not accumulated in the kernels of matrix products."""


def pretend_kernels() -> None:
    """Let Megatron-Core find a GPU and kernels, none of which it calls here."""
    torch.cuda.get_device_properties = lambda _device=0: SimpleNamespace(major=9, minor=0, name="NVIDIA H100")
    sys.modules[ADAM] = ModuleType(ADAM)
    sys.modules[ADAM].FusedAdam = _adam
    sys.modules[APEX] = ModuleType(APEX)
    comm_overlap.HAVE_TE = deepseek_v3_bridge.HAVE_TE = True
    utils.get_te_version = lambda: Version("2.12")
    for module, names in KERNELS.items():
        for name in names:
            setattr(module, name, print)


def _adam(
    master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
) -> None:
    """Have the arguments that Megatron-Core asks for; nothing calls it."""


def completed(config: ConfigContainer) -> dict[str, Any]:
    """Return the fields of a configuration by dotted name, after all that training does with it first."""
    runtime_config_update(config)
    return {name: value for section in SECTIONS for name, value in fields(section, getattr(config, section))}


def fields(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return a value by its name; of a record its fields."""
    if not dataclasses.is_dataclass(value):
        plain = (int, float, str, list, tuple, type(None))
        return [(name, value if isinstance(value, plain) else str(value))]
    return [
        pair
        for field in dataclasses.fields(value)
        for pair in fields(f"{name}.{field.name}", getattr(value, field.name, None))
    ]


def told(request: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request's run, or those that differ from the recipe."""
    Path("run.json").write_text(json.dumps(request["run"]), encoding="utf-8")
    run = read_run(Path("run.json"))
    os.environ["WORLD_SIZE"] = str(run.recipe.parallelism.world_size)
    ours = completed(configuration(run, Folders(Path()), "cuda"))
    if request["recipe"] is None:
        return ours
    Path("hub").mkdir(exist_ok=True)
    Path("hub", "config.json").write_text(json.dumps(request["hub"]), encoding="utf-8")
    upstream = completed(getattr(recipes, request["recipe"])())
    pairs = {name: [ours.get(name), upstream.get(name)] for name in sorted(ours.keys() | upstream.keys())}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def main(requests: str) -> None:
    os.environ["RANK"] = "0"
    pretend_kernels()
    from_hub = AutoBridge.from_hf_pretrained
    AutoBridge.from_hf_pretrained = classmethod(lambda _class, _name: from_hub("hub"))
    asked = json.loads(Path(requests).read_text(encoding="utf-8"))
    print(json.dumps([told(request) for request in asked], default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
