"""All that Megatron-Bridge needs to train on a CPU, beyond `trainer.cpu.cpu_as_cuda`, each with its reason.

Megatron-Core without Transformer Engine takes PyTorch's own norms, Adam and loss: none of these is replaced.
Nothing here is installed if the plan is for GPUs.
"""

import sys
from collections import defaultdict
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import nvidia_resiliency_ext
import torch

from trainer.progress import peak_resident_bytes

_MISSING_MODULES = {
    # Fine-tuning only; both import Transformer Engine's layers at the top.
    "megatron.bridge.peft.lora": ("LoRA", "LoRAMerge", "VLMLoRA"),
    "megatron.bridge.peft.lora_layers": ("LinearAdapter", "LoRALinear", "LoRATopKRouter"),
    # Inference only; written in Triton, of which PyTorch's CPU builds have none.
    "megatron.core.inference.contexts.attention_context.triton.tensor_ops": (
        *("tensor_get_slice_after", "tensor_masked_update", "tensor_merge"),
    ),
}
"""Modules that no pre-training calls and that cannot be imported without a GPU's packages; what is imported
from each."""


def provide_missing_modules() -> None:
    """Put empty classes in place of `_MISSING_MODULES`; call it before Megatron-Bridge is imported."""
    # Megatron-Core 0.19 asks for 0.6, and PyPI has 0.4.1, whose functions it needs here are the same.
    nvidia_resiliency_ext.__version__ = "0.6.0"
    for name, members in _MISSING_MODULES.items():
        module = ModuleType(name)
        for member in members:
            setattr(module, member, type(member, (), {}))
        sys.modules[name] = module


_DEVICE = SimpleNamespace(major=0, minor=0, name="cpu", total_memory=0, multi_processor_count=0)
"""The properties of a GPU that no capability check takes for one with FP8, DeepEP or the like."""


def cpu_patches() -> list[tuple[Any, str, Any]]:
    """Return the patches of torch and Megatron-Bridge, for `cpu_as_cuda`."""
    # Not at the top: all of them need `provide_missing_modules` before.
    from megatron.bridge.training import initialize, setup, state
    from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer import multi_latent_attention

    from trainer.cpu.cpu_as_cuda import InOrder, do_nothing, results_queue

    class ForkedWriters(async_utils.AsyncCallsQueue):
        def __init__(self, persistent: bool = False):
            super().__init__(persistent=False)

        def warmup_persistent_caller(self, *_: Any, **__: Any) -> None: ...

    return [
        # Megatron-Bridge refuses to start without CUDA, though it knows how to.
        (setup, "initialize_megatron", partial(setup.initialize_megatron, allow_no_cuda=True)),
        # It warms up kernels that torch.compile fuses for GPUs.
        (setup, "set_jit_fusion_options", do_nothing),
        # It compiles an index for data on disk, of which steptime's stream of tokens has none.
        (initialize, "compile_helpers", do_nothing),
        # The process that writes asynchronous saves is spawned, without these patches: here it is forked.
        *((module, "AsyncCallsQueue", ForkedWriters) for module in (state, async_utils)),
        # The name that Megatron-Core has from 0.19 on for what `cpu_as_cuda` replaces under the earlier one.
        (filesystem_async, "get_write_results_queue", lambda *_: results_queue()),
        # Latent attention asks whether a layer is Transformer Engine's, and has None without it.
        (multi_latent_attention, "TELinear", type("TELinear", (), {})),
        # Layers that predict further tokens are asked of Transformer Engine, whatever the others are.
        (gpt_layer_specs, "TESpecProvider", gpt_layer_specs.LocalSpecProvider),
        # With no device it would leave Megatron's random states unset, and with them dropout's.
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "set_device", do_nothing),
        # Checkpoints hold the state of the GPU's random numbers.
        (torch.cuda, "set_rng_state", lambda state, *_: torch.set_rng_state(state)),
        # It asks which GPU it has before it chooses how experts exchange tokens.
        (torch.cuda, "get_device_properties", lambda *_: _DEVICE),
        # It logs the memory after the first step.
        (torch.cuda, "memory_stats", lambda *_: _memory_stats()),
        # Megatron's timers and pipeline record events, and empty the cache.
        (torch.cuda, "Event", InOrder),
        (torch.cuda, "empty_cache", do_nothing),
        (torch.cuda, "is_current_stream_capturing", lambda: False),
    ]


def _memory_stats() -> dict[str, Any]:
    peak = peak_resident_bytes()
    return defaultdict(int, {"allocated_bytes.all.peak": peak, "reserved_bytes.all.peak": peak})
