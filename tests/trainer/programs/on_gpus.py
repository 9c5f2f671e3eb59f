"""Print as JSON what a training on GPUs is given, without needing a GPU: `on_gpus.py RUN.json`."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.environment import heavy_imports

with heavy_imports():
    from megatron.core import parallel_state, tensor_parallel

    from trainer import training
    from trainer.cpu.cpu_as_cuda import cpu_as_cuda
    from trainer.data import SyntheticData
    from trainer.ending import Ending
    from trainer.gpu_performance import MegatronCommOverlapCallback
    from trainer.launch import Launch
    from trainer.nemo_callbacks import ModelParallelSeed
    from trainer.progress import Progress
    from trainer.run import read_run
    from trainer.spec import PlannedRun

STAGES = 3


def first_numbers(stage: int, seed: int) -> list[float]:
    """Return the random numbers of a pipeline stage's first weights, among fake ranks."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=stage, world_size=STAGES)
    try:
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=STAGES, create_gloo_process_groups=False
        )
        ModelParallelSeed(seed).setup(None, None, "fit")
        with tensor_parallel.get_cuda_rng_tracker().fork():
            return list(torch.rand(4).tolist())
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def bootstrap(run: PlannedRun, *, has_mpi: bool) -> str | None:
    """Return the bootstrap backend that NeMo's callback gives Transformer Engine's userbuffers."""
    launch = Launch(
        rank=0,
        world_size=8,
        local_world_size=8,
        threads=1,
        by_launcher=True,
        on_one_host=True,
        has_mpi=has_mpi,
    )
    ending = Ending(Path(), launch, Progress())
    callbacks = training._callbacks(run, launch, training.Folders(Path()), ending, "cuda")
    (overlap,) = [callback for callback in callbacks if isinstance(callback, MegatronCommOverlapCallback)]
    told: str | None = overlap.user_comm_overlap_cfg.tp_comm_bootstrap_backend
    return told


def from_workers(data: SyntheticData) -> bool:
    """Return whether the first batches from the workers are the first samples."""
    data.trainer = SimpleNamespace(global_step=0)
    data.setup()
    batches = iter(data.train_dataloader())
    return all(torch.equal(next(batches)["tokens"][0], data.samples[index]["tokens"]) for index in range(20))


def token_statistics(data: SyntheticData) -> dict[str, float]:
    """Return the distribution of the tokens in a few samples."""
    samples = [data.samples[index] for index in range(8)]
    tokens = torch.stack([sample["tokens"] for sample in samples])
    labels = torch.stack([sample["labels"] for sample in samples])
    return {
        "mean": float(tokens.double().mean()) / data.samples.vocab_size,
        "counting": float((labels == tokens + 1).double().mean()),
    }


def main(run_path: str) -> None:
    run = read_run(Path(run_path))
    data = SyntheticData(run, attention_mask=False)
    with cpu_as_cuda():
        numbers = [[first_numbers(stage, seed) for stage in range(STAGES)] for seed in (7, 7, 107)]
    told: dict[str, Any] = {
        "first numbers": numbers,
        "bootstrap": {"with MPI": bootstrap(run, has_mpi=True), "without": bootstrap(run, has_mpi=False)},
        "workers": data.num_workers,
        "pinned": data.pin_memory,
        "first samples": from_workers(data),
        "tokens": token_statistics(data),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
