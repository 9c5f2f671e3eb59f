"""The synthetic token stream as a data set of Megatron-Bridge; checkpoints hold the consumed samples."""

from dataclasses import dataclass
from typing import Any

from megatron.bridge.training.config import DatasetBuildContext, DatasetProvider

from trainer.spec import PlannedRun
from trainer.tokens import WORKERS, SyntheticTokens


@dataclass
class SyntheticDataset(DatasetProvider):
    """Megatron-Bridge's configuration of `SyntheticTokens`."""

    seq_length: int = 0
    samples: SyntheticTokens | None = None
    skip_getting_attention_mask_from_dataset: bool = True
    """Whether a batch has no mask; Megatron's own attention, on the CPU, takes one."""
    tokenizer: Any = None

    def build_datasets(self, context: DatasetBuildContext) -> tuple[Any, Any, Any]:
        """Return the samples to train on; there are none to validate and test."""
        return self.samples, None, None


def synthetic_dataset(run: PlannedRun) -> SyntheticDataset:
    """Return the planned stream, with as many loader processes as NeMo's backend has."""
    model, on_gpus = run.recipe.model, run.recipe.gpu_type != "cpu"
    samples = SyntheticTokens(
        model.vocab_size, model.seq_length, run.seed, attention_mask=not on_gpus, uniform=on_gpus
    )
    return SyntheticDataset(
        seq_length=model.seq_length,
        samples=samples,
        skip_getting_attention_mask_from_dataset=on_gpus,
        dataloader_type="single",
        num_workers=WORKERS if on_gpus else 0,
        pin_memory=on_gpus,
    )
