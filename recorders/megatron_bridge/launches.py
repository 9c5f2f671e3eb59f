"""Run a launch.sh of the DGX Cloud's recipes for a row, with a stand-in for Python, to see what it starts."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from upstream import shown

_STAND_IN = """#!/bin/sh
printf '%s\\0' "$@" >"$STARTED.new"
env -0 >"$STARTED.environment"
mv "$STARTED.new" "$STARTED"
"""
_SHORT = {
    **{"-tp": "tensor_model_parallel_size", "-pp": "pipeline_model_parallel_size"},
    **{"-cp": "context_parallel_size", "-vp": "virtual_pipeline_model_parallel_size"},
    **{"-ep": "expert_model_parallel_size", "-et": "expert_tensor_parallel_size"},
    **{"-gb": "global_batch_size", "-mb": "micro_batch_size"},
}
"""Upstream's long name of each short argument."""


def launched(
    clone: str, tag: str, script: str, variables: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the arguments by name that a launch.sh passes on, and the variables of NCCL that it exports."""
    with tempfile.TemporaryDirectory() as folder:
        install, started = Path(folder, "install"), Path(folder, "started")
        bin_folder = Path(folder, "bin")
        bin_folder.mkdir()
        (bin_folder / "python3").write_text(_STAND_IN)
        (bin_folder / "python3").chmod(0o755)
        text = shown(clone, tag, script)
        name = next(
            line.partition("=")[2] for line in text.splitlines() if line.startswith("export MODEL_NAME=")
        )
        (install / "workloads" / f"pretrain_{shlex.split(name)[0]}" / "Megatron-Bridge").mkdir(parents=True)
        Path(folder, "launch.sh").write_text(text)
        asked = {
            **{"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "STARTED": str(started)},
            **{"LLMB_INSTALL": str(install), "SBATCH_ACCOUNT": "none", "SBATCH_PARTITION": "none"},
            "HF_TOKEN": "none",
        }
        subprocess.run(
            ["/bin/bash", "launch.sh"], env=asked | variables, cwd=folder, check=True, capture_output=True
        )
        told = started.read_text().rstrip("\0").split("\0")[1:]
        exported = dict(
            one.partition("=")[::2] for one in Path(f"{started}.environment").read_text().split("\0") if one
        )
    return _by_name(told), {name: value for name, value in exported.items() if name.startswith("NCCL_")}


def _by_name(told: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for word in told:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            name = _SHORT.get(name, name.lstrip("-"))
            found[name] = value
        else:
            found[name] = word
    return found
