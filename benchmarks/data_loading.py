"""What a rank's synthetic samples cost it in a step: made by itself, or received from workers.

    PYTHONPATH=. TRAINER_VENV/bin/python benchmarks/data_loading.py

in the trainer's environment. Prints a Markdown table of milliseconds of the rank's own processor time, so
that other work on the machine counts as little as can be.
"""

import time
import warnings

from torch.utils.data import (  # noqa: TID251 (it runs in the trainer's environment)
    BatchSampler,
    DataLoader,
    SequentialSampler,
)

from trainer.tokens import SyntheticTokens

SHAPES = {
    "Llama 3.1 8b": (128_256, 8192, 32),
    "Llama 3.1 405b": (128_256, 8192, 64),
    "Nemotron4 15b": (256_000, 4096, 8),
    "Nemotron4 340b": (256_000, 4096, 16),
    "Nemotron-H 56b": (131_072, 8192, 24),
}
"""Vocabulary, positions, and samples of a step on each data-parallel rank, as in the documents' tables."""
STEPS = 10
WORKERS = (0, 8)


def own_ms(samples: SyntheticTokens, per_step: int, workers: int) -> float:
    """Milliseconds of this process in a step; the first one is left out, as workers start in it."""
    batches = BatchSampler(SequentialSampler(range((STEPS + 1) * per_step)), batch_size=1, drop_last=True)
    loaded = iter(
        DataLoader(samples, batch_sampler=batches, num_workers=workers, collate_fn=samples.collate_fn)
    )
    for _ in range(per_step):
        next(loaded)
    began_at = time.process_time()
    for _ in range(STEPS * per_step):
        next(loaded)
    return (time.process_time() - began_at) / STEPS * 1e3


def main() -> None:
    """Measure each model."""
    warnings.filterwarnings("ignore", message="This DataLoader will create 8 worker processes")
    print(f"| model | samples a step | {' | '.join(f'{workers} workers, ms' for workers in WORKERS)} |")
    print("| --- " * (2 + len(WORKERS)) + "|")
    for model, (vocabulary, length, per_step) in SHAPES.items():
        samples = SyntheticTokens(vocabulary, length, seed=1, attention_mask=False)
        measured = " | ".join(f"{own_ms(samples, per_step, workers):.1f}" for workers in WORKERS)
        print(f"| {model} | {per_step} | {measured} |")


if __name__ == "__main__":
    main()
