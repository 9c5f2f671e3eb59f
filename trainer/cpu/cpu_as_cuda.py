"""Let code for CUDA run on the CPU.

NeMo, Megatron-Bridge and Megatron-Core name CUDA throughout: `device="cuda"`, `.cuda()`, streams, memory
statistics. `cpu_as_cuda` lets them run unmodified on the CPU: nothing is simulated; the arithmetic, the
collectives (gloo) and the checkpoint files are real. The patches of torch and Megatron-Core are here with
their reasons, those of Megatron-Bridge in `trainer.bridge.on_cpu`, and NeMo's single one in
`trainer.training`. If the plan is for GPUs none of them is installed.
"""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.ssm import mamba_mixer
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from torch.overrides import TorchFunctionMode

from trainer.progress import peak_resident_bytes

Patch = tuple[Any, str, Any]
"""A module or class, the name of an attribute, and its value on the CPU."""


@contextlib.contextmanager
def cpu_as_cuda(framework: Sequence[Patch] = ()) -> Iterator[None]:
    """Make torch calls that ask for CUDA use the CPU, within this context.

    Args:
        framework: the patches that only the framework in use needs.
    """
    with contextlib.ExitStack() as patches:
        for owner, name, answer in (*_PATCHES, *framework):
            patches.enter_context(_replaced(owner, name, answer))
        patches.enter_context(_CudaMeansCpu())
        yield


_MISSING = object()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, answer: Any) -> Iterator[None]:
    original = getattr(owner, name, _MISSING)
    setattr(owner, name, answer)
    try:
        yield
    finally:
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


class _CudaMeansCpu(TorchFunctionMode):
    """Redirects torch calls that name CUDA to the CPU."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]  # already where it should be; there is no other memory to copy to
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron's optimizer and gradient clipping assert `tensor.type() == "torch.cuda.FloatTensor"`.
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if func is torch.Tensor.to:
            args = tuple(_on_cpu(arg) for arg in args)
        if kwargs:
            kwargs.pop("pin_memory", None)  # pinning needs a CUDA driver
            if "device" in kwargs:
                kwargs["device"] = _on_cpu(kwargs["device"])
            return func(*args, **kwargs)
        return func(*args)


def _on_cpu(value: Any) -> Any:
    """Return the CPU device for a CUDA device or its name; return anything else unchanged."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and value.startswith("cuda"):
        return torch.device("cpu")
    return value


class InOrder:
    """Stands in for a CUDA stream or event: on the CPU an operation has finished when its call returns."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def nothing(self, *_: Any, **__: Any) -> None:
        """Record, wait or synchronize: there is nothing to wait for."""

    record = wait = wait_stream = wait_event = synchronize = nothing

    def record_event(self, *_: Any) -> "InOrder":
        """Return an event that has already happened."""
        return InOrder()

    def query(self) -> bool:
        """Return True: all work has always finished."""
        return True


def do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing, in place of a call that only a GPU needs."""


def _splits(tensor: Any, as_numpy: bool = False, **_: Any) -> Any:
    """Return a tensor, as a numpy array if asked for, in place of Megatron's `maybe_move_tensor_to_cpu`.

    Megatron's function returns a CPU tensor as it is, even if a numpy array is asked for.
    """
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


@cache
def results_queue() -> Any:
    """Return the queue in which the processes that write a checkpoint report their results."""
    return multiprocessing.get_context("fork").Manager().Queue()


_PATCHES: tuple[Patch, ...] = (
    # Megatron keeps random states per model-parallel rank (dropout, initial weights): in the CPU's generator.
    (torch.cuda, "manual_seed", torch.default_generator.manual_seed),
    (torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state()),
    (megatron_random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state()),
    (megatron_random, "_set_cuda_rng_state", lambda state, *_, **__: torch.set_rng_state(state)),
    # Megatron allocates on the current device, and waits for it before it looks at a clock.
    (torch.cuda, "current_device", lambda: torch.device("cpu")),
    (torch.cuda, "synchronize", do_nothing),
    # NeMo wraps the model for data parallelism on a stream of its own.
    (torch.cuda, "Stream", InOrder),
    (torch.cuda, "stream", lambda _: contextlib.nullcontext()),
    (torch.cuda, "default_stream", InOrder),
    (torch.cuda, "current_stream", InOrder),
    # Megatron's Mamba mixer asks for the CUDA kernels; trainer/cpu/mamba_reference.py has what they do.
    (mamba_mixer, "HAVE_MAMBA_SSM", True),
    # Megatron's router asks for a product of Transformer Engine's by a name that it has not bound without it.
    (moe_utils, "te_general_gemm", None),
    # How many tokens go to each rank's experts is needed as numbers; they come from a GPU elsewhere.
    (token_dispatcher, "maybe_move_tensor_to_cpu", _splits),
    # Megatron spawns a process for it, which imports torch for seconds of a save, as CUDA outlives no fork.
    (filesystem_async, "_get_write_results_queue", results_queue),
    # NeMo's step lines show the memory: of the process, as there is no device memory.
    (torch.cuda, "max_memory_allocated", peak_resident_bytes),
    (torch.cuda, "max_memory_reserved", peak_resident_bytes),
)
