"""Make `tests/data/llmb-archive.tar.zst` with NVIDIA's own llmb-run, from made-up logs.

usage: PYTHON make_llmb_archive.py CHECKOUT FILE.tar.zst

CHECKOUT is of NVIDIA/exemplar-performance (v26.08.00 was used), whose cli/llmb-run PYTHON has installed.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

import yaml

SIX_STEPS_S = (3.0, 3.01, 2.99, 3.005, 2.995, 3.0)
"""Mean step times of six equal runs of Nemotron 3 Nano on 8 GPUs."""
NAME = "pretrain_nemotron_3_nano_fp8_mx_gpus8_tp1_pp1_cp1_vpNone_ep8_etp1_mbs4_gbs512"


def main(checkout: Path, output: Path) -> None:
    """Run llmb-run's own functions over an installation with experiments that never ran."""
    with tempfile.TemporaryDirectory() as folder:
        install = Path(folder).resolve()
        os.chdir(install)
        Path("repo").symlink_to(checkout)
        os.environ["LLMB_INSTALL"], os.environ["USER"] = str(install), "ada"
        config = {
            "schema_version": 2,
            "llmb_repo": str(install / "repo"),
            "llmb_install": str(install),
            "gpu_type": "gb300",
            "cluster_name": "their-cluster",
            "install": {"node_architecture": "aarch64"},
            "slurm": {"account": "a", "gpu": {"partition": "p", "gres": 4}, "cpu": {"partition": "c"}},
            "workloads": {"installed": ["pretrain_nemotron_3"], "config": {}},
        }
        Path("cluster_config.yaml").write_text(yaml.safe_dump(config))
        from llmb_run.archive import run_archive
        from llmb_run.config_manager import get_cluster_config
        from llmb_run.run_config import create_llmb_config
        from llmb_run.tasks import WorkloadTask

        cluster = get_cluster_config()
        metadata = yaml.safe_load((checkout / "nemotron3" / "metadata.yaml").read_text())
        workloads = {"pretrain_nemotron_3": {"metadata": metadata, "workload": "nemotron_3"}}
        for number, step_s in enumerate((*SIX_STEPS_S, None)):
            experiment = (
                install / "workloads/pretrain_nemotron_3/experiments" / NAME / f"{NAME}_17660{number}"
            )
            (experiment / NAME).mkdir(parents=True)
            task = WorkloadTask(
                "pretrain_nemotron_3", "30b", "fp8_mx", 8, env_overrides={"NCCL_DEBUG": "WARN"}
            )
            create_llmb_config(task, str(4000 + number), str(experiment), cluster, workloads)
            (experiment / NAME / f"log-a.{NAME}_{4000 + number}_0.out").write_text(log(number, step_s))
            (experiment / "latest").symlink_to("/etc")
            (experiment / "nsys_profile").mkdir()
            (experiment / "nsys_profile" / "profile.nsys-rep").write_bytes(b"x")
        run_archive(cluster, str(output.resolve()))


def log(seed: int, step_s: float | None) -> str:
    """Return fifty steps as Megatron-Bridge prints them; without a step time, ten and a failure."""
    noise = random.Random(seed)  # noqa: S311
    times = [1000 * (step_s or 3) * noise.uniform(0.998, 1.002) for _ in range(50 if step_s else 10)]
    lines = [
        f" [2026-11-0{seed + 1} 10:00:{at:02}] iteration {at:8d}/{50:8d} | "
        f"consumed samples: {at * 512:12d} | "
        f"elapsed time per iteration (ms): {time_ms:.1f} | learning rate: 3.000000E-04 | "
        "global batch size:   512 | lm loss: 4.474437E+00 | loss scale: 1.0 | grad norm: 0.7 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for at, time_ms in enumerate(times, 1)
    ]
    if step_s is None:
        lines.append("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    return "".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
