"""The device that the plan trains on, and the memory used there."""

import torch

from trainer.errors import TrainerError
from trainer.progress import peak_resident_bytes


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
