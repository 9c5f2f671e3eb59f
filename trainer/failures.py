"""An exception for people: one sentence, an exit code, and a report if GPU memory ran out."""

import re
import sys

from trainer.errors import TrainerError, TrainingFailure
from trainer.versions import untried

LONGEST_MESSAGE = 500
REMEDY = "take more ranks, a smaller micro batch, or more tensor or pipeline parallelism"
_NOT_ALLOCATED = re.compile(r"can't allocate memory: you tried to allocate (?P<size>\d+ bytes)")
"""torch's words for the memory of the CPU."""
_NOT_ON_GPU = re.compile(r"(?:CUDA|HIP)\b.*?out of memory(?:\. Tried to allocate (?P<size>[\d.]+ \w+))?")


def exit_code(error: BaseException) -> int:
    """1 if what was asked cannot be, 2 if the training could not go on."""
    return error.exit_code if isinstance(error, TrainerError) else TrainingFailure.exit_code


def sentence(error: BaseException, rank: int, peak_memory_bytes: int) -> str:
    """Return in one line why the training ended."""
    if isinstance(error, TrainerError):
        return str(error)
    message = " ".join(str(error).split())
    if out_of_memory := _NOT_ON_GPU.search(message):
        return _out_of_memory(f"GPU memory of rank {rank}", out_of_memory["size"], peak_memory_bytes)
    if out_of_memory := _NOT_ALLOCATED.search(message):
        return _out_of_memory(f"memory of rank {rank}", out_of_memory["size"], peak_memory_bytes)
    if isinstance(error, MemoryError):
        return _out_of_memory(f"memory of rank {rank}", None, peak_memory_bytes)
    failed = f"rank {rank} failed: {message[:LONGEST_MESSAGE] or type(error).__name__}"
    if isinstance(error, ImportError | AttributeError | TypeError) and (others := untried()):
        return f"{failed}; {others}: choose another image if their API differs."
    return failed


def _out_of_memory(whose: str, size: str | None, peak_memory_bytes: int) -> str:
    return (
        f"the {whose} does not suffice: {size or 'more'} could not be allocated, and its peak was "
        f"{peak_memory_bytes} bytes; {REMEDY}."
    )


def memory_report(error: BaseException) -> str | None:
    """torch's summary of the GPU's memory, if that is what ran out."""
    torch = sys.modules.get("torch")  # without it nothing has been allocated
    if torch is None or _NOT_ON_GPU.search(str(error)) is None or not torch.cuda.is_initialized():
        return None
    return str(torch.cuda.memory_summary())
