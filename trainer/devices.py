"""Where the training runs by its plan, and the memory that it holds there."""

import torch

from trainer.errors import TrainerError
from trainer.progress import peak_resident_bytes


def training_device(gpu_type: str) -> str:
    """`cpu` or `cuda`, as planned.

    Raises:
        TrainerError: a GPU is planned and this machine offers none.
    """
    if gpu_type == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        raise TrainerError(f"the plan is for the GPU type '{gpu_type}', but torch finds no CUDA device here.")
    return "cuda"


def peak_memory_bytes(device: str) -> int:
    """Return the most memory this rank has held: of its GPU, or on the CPU of its process (resident)."""
    return int(torch.cuda.max_memory_allocated()) if device == "cuda" else peak_resident_bytes()
