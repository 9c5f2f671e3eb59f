"""Prepare the process: offline mode, thread counts, line buffering and a shorter log."""

import contextlib
import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator

from trainer.launch import Launch
from trainer.spec import BRIDGE, Recipe

EXPECTED_WARNINGS = (
    # torch prefers another name of a package that NeMo's dependencies bring.
    ("The pynvml package is deprecated", FutureWarning),
    # Megatron-Core then takes PyTorch's, as it should on a CPU.
    ("Transformer Engine and Apex are not installed", UserWarning),
    # Lightning does not see that Megatron's sampler starts behind the consumed samples.
    ("You're resuming from a checkpoint that ended before the epoch ended", UserWarning),
)


def prepare(launch: Launch, recipe: Recipe) -> None:
    """Set environment variables, line buffering and log filters; call it before importing torch and NeMo."""
    os.environ.update(
        HF_HUB_OFFLINE="1",  # nothing is looked up or downloaded: data and tokens are synthetic
        TRANSFORMERS_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        NEMO_LOG_MEMORY_USAGE="1",  # peak memory in NeMo's step lines
        # For the processes that Megatron starts to write a checkpoint.
        PYTHONWARNINGS=",".join(f"ignore:{text}:{kind.__name__}" for text, kind in EXPECTED_WARNINGS),
    )
    if recipe.gpu_type == "cpu":
        os.environ["OMP_NUM_THREADS"] = str(launch.threads)  # also if nobody had set it
        # Megatron's random states are kept in the CPU's generator there, of which it warns at every use.
        logging.getLogger("megatron.core.tensor_parallel.random").addFilter(
            lambda record: "CPU RNG state changed" not in record.getMessage()
        )
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a CPU plan measures the CPU, on a machine with GPUs too
        if recipe.backend == BRIDGE:
            os.environ["TORCHDYNAMO_DISABLE"] = (
                "1"  # it cannot compile what trainer/bridge/on_cpu.py replaces
            )
        if launch.on_one_host:
            # Else gloo takes the interface of the host's name, which need not resolve.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for text, kind in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=text, category=kind)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # each line at once, in a file, too


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Disable garbage collection and warnings while NeMo is imported in this context.

    The imports create more than a million permanent objects, which the garbage collector would search again
    and again (about two seconds while importing and three at exit, on two cores). NeMo warns about every
    missing optional package. Errors are still shown.
    """
    gc.disable()
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.freeze()
        gc.enable()


def filter_log(rank: int = 0) -> None:
    """Hide NeMo's lists of process groups, buckets, layers and configs; call it after importing NeMo.

    NeMo logs only on rank 0, but if it was imported before the fork, it treats every forked rank as rank 0.
    """
    if rank:
        from nemo.utils import logging as nemo_logging

        nemo_logging.remove_stream_handlers()
    for name in (
        "megatron.core.distributed",
        "megatron.core.optimizer",
        "megatron.core.ssm.mamba_hybrid_layer_allocation",  # the pattern is the plan's
    ):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("nemo_logger").addFilter(
        lambda record: record.module != "megatron_init" or record.levelno > logging.INFO
    )
