"""The process's surroundings, set before NeMo is imported: offline, threads as planned, a readable log."""

import os
import sys
import warnings

from trainer.launch import Launch


def prepare(launch: Launch, *, cpu: bool) -> None:
    """Set environment variables, output buffering and log filters; call it before importing torch or NeMo."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",  # nothing is looked up or downloaded: data and tokens are synthetic
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NEMO_LOG_MEMORY_USAGE": "1",  # peak memory in NeMo's step lines
    }.items():
        os.environ.setdefault(name, value)
    if cpu:
        os.environ["OMP_NUM_THREADS"] = str(launch.threads)  # torchrun sets 1, whatever the number of cores
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a CPU plan measures the CPU, on a machine with GPUs too
        if launch.nodes == 1:
            os.environ.setdefault(
                "GLOO_SOCKET_IFNAME", "lo"
            )  # else gloo resolves the host's name, which may not work
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # whole lines, at once, also into a file
