"""Enough of torchrun to start two ranks here: `run --nproc-per-node=N … -m MODULE ARGUMENT…`."""

import os
import subprocess
import sys

start = sys.argv.index("-m")
[ranks] = [int(text.partition("=")[2]) for text in sys.argv[:start] if text.startswith("--nproc-per-node=")]
of_all = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": str(ranks)}
started = [
    subprocess.Popen([sys.executable, *sys.argv[start:]], env={**os.environ, **of_all, "RANK": str(rank)})
    for rank in range(ranks)
]
sys.exit(max(rank.wait() for rank in started))
