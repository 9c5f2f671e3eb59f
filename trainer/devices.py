"""The device that the plan trains on, the memory used there, and what depends on it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from trainer.cpu.cpu_as_cuda import Patch, cpu_as_cuda
from trainer.ending import Ending
from trainer.errors import TrainerError
from trainer.launch import Launch
from trainer.progress import peak_resident_bytes
from trainer.spec import CPU_FORMATS, GPU_FORMATS, Recipe


@contextlib.contextmanager
def planned_device(
    recipe: Recipe, launch: Launch, ending: Ending, cpu_patches: Callable[[], Sequence[Patch]]
) -> Iterator[str]:
    """Yield `cpu` or `cuda`, as planned, and let the framework train there within this context.

    The watchdog's clock starts, and `ending` learns how to read this rank's peak memory.

    Args:
        cpu_patches: returns the patches that the framework needs on the CPU; called for a CPU plan only.

    Raises:
        TrainerError: the plan needs a GPU and there is none, or its dtype or parallelism does not fit the
            device.
    """
    device = training_device(recipe.gpu_type)
    check_device_trains(recipe, device)
    ending.progress.own_peak_memory = partial(peak_memory_bytes, device)
    ending.progress.moved_at = time.perf_counter()  # the framework's imports are behind us
    if device == "cuda":
        yield device
        return
    with cpu_as_cuda(cpu_patches()):
        torch.set_num_threads(launch.threads)
        yield device


def training_device(gpu_type: str) -> str:
    """Return `cpu` or `cuda`, as planned.

    Raises:
        TrainerError: a GPU is planned and this machine offers none.
    """
    if gpu_type == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise TrainerError(
            f"the plan is for the GPU type '{gpu_type}', but torch finds no CUDA device "
            f"here: plan for cpu, or run on a node with GPUs."
        )
    return "cuda"


def peak_memory_bytes(device: str) -> int:
    """Return this rank's peak memory: allocated on its GPU, or resident in its process on the CPU."""
    return int(torch.cuda.max_memory_allocated()) if device == "cuda" else peak_resident_bytes()


def check_device_trains(recipe: Recipe, device: str) -> None:
    """Raise TrainerError if the trainer does not support the recipe's dtype or parallelism on the device."""
    formats = CPU_FORMATS if device == "cpu" else GPU_FORMATS[recipe.backend]
    if recipe.dtype not in formats:
        raise TrainerError(
            f"this trainer cannot train dtype '{recipe.dtype}' on {device}; "
            f"choose one of: {', '.join(formats)}."
        )
    if device == "cpu" and recipe.parallelism.context > 1:
        raise TrainerError(
            f"context parallel {recipe.parallelism.context} needs Transformer Engine's attention, which runs "
            "on GPUs only; on the CPU it must be 1."
        )


def model_options(device: str) -> dict[str, Any]:
    """Return the TransformerConfig fields that depend on the device; GPUs keep the framework's defaults.

    The layers of a CPU model, which lack Transformer Engine, are chosen by its family.
    """
    if device == "cuda":
        return {}
    return {
        # None of the kernels that are fused for CUDA.
        "apply_rope_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "cross_entropy_loss_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "use_cpu_initialization": True,
        "params_dtype": torch.float32,
        "pipeline_dtype": torch.float32,
        "deallocate_pipeline_outputs": False,
    }
