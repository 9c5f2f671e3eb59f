"""Let torchtitan train on a CPU, in environments that tests make: a `.pth` file there imports this module.

It acts only in a rank of `python -m torchtitan.train`. Torch's CPU build has no Triton, gloo has no devices
and only adds, FlexAttention has no backward on the CPU. It was tried with torchtitan 0.2.2 and 0.3.0 on torch
2.13.0.
"""

import collections
import importlib.util
import os
import resource
import sys
import types
from typing import Any


class _Kernels(types.ModuleType):
    """Stands in for modules of Triton kernels, which torchtitan always imports and calls on GPUs only."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _train_on_cpu() -> None:
    import torch
    import torch._utils
    import torch.distributed
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    torch._utils._get_available_device_type = lambda: (
        "cpu"
    )  # torchtitan takes "cuda" if there is no accelerator

    def memory(*_: Any) -> collections.defaultdict[str, int]:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return collections.defaultdict(
            int, dict.fromkeys(("active_bytes.all.peak", "reserved_bytes.all.peak"), peak)
        )

    for name, value in {  # torch.cpu lacks what torchtitan asks torch.cuda for
        "get_device_name": lambda *_: "cpu",
        "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=24 << 30),
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
        "memory_stats": memory,
    }.items():
        setattr(torch.cpu, name, value)
    if importlib.util.find_spec("triton") is None:
        for name in ("torchtitan.distributed.minimal_async_ep.kernels", "torchtitan.models.moe.kernels"):
            sys.modules[name] = _Kernels(name)
    if not hasattr(torch.distributed, "set_timeout"):  # 0.3.0 asks for a newer torch
        torch.distributed.set_timeout = lambda *_: None
    barrier = torch.distributed.barrier
    torch.distributed.barrier = lambda *args, device_ids=None, **options: barrier(*args, **options)
    factors = _fsdp_collectives._get_gradient_divide_factors
    _fsdp_collectives._get_gradient_divide_factors = lambda *args, **_: factors(
        *args[:5], force_sum_reduction_for_comms=True
    )
    if importlib.util.find_spec("torchtitan.models.common") is not None:  # 0.3
        _attend_densely()


def _attend_densely() -> None:
    import torch
    from torch.nn.attention.flex_attention import create_mask
    from torchtitan.models.common import attention

    masks: dict[str, Any] = {}  # the newest, which all layers of a batch share

    def dense(
        q: Any, k: Any, v: Any, *, block_mask: Any, scale: Any, enable_gqa: bool, **_: Any
    ) -> tuple[Any, None]:
        if masks.get("of") is not block_mask:
            size = q.shape[0], 1, q.shape[2], k.shape[2]
            masks.update(of=block_mask, dense=create_mask(block_mask.mask_mod, *size, device="cpu"))
        product = torch.nn.functional.scaled_dot_product_attention
        return product(q, k, v, attn_mask=masks["dense"], scale=scale, enable_gqa=enable_gqa), None

    attention.FlexAttention._compiled_flex_attn = staticmethod(dense)


if "RANK" in os.environ and sys.orig_argv[1:3] == ["-m", "torchtitan.train"]:
    _train_on_cpu()
