"""The synthetic token stream as a NeMo data module, with its position saved in checkpoints."""

from typing import Any

from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
from nemo.collections.llm.gpt.data.mock import MockDataModule

from trainer.spec import PlannedRun
from trainer.tokens import WORKERS, SyntheticTokens


class SyntheticData(MockDataModule):
    """NeMo's data module over `SyntheticTokens`; checkpoints hold the number of consumed samples."""

    def __init__(self, run: PlannedRun, *, attention_mask: bool):
        recipe = run.recipe
        on_gpus = recipe.gpu_type != "cpu"
        super().__init__(
            seq_length=recipe.model.seq_length,
            micro_batch_size=recipe.micro_batch_size,
            global_batch_size=recipe.global_batch_size,
            tokenizer=NullTokenizer(
                vocab_size=recipe.model.vocab_size
            ),  # never asked; without it NeMo downloads one
            # As upstream's runs have them, by default of NeMo's module. On the CPU the cores are the ranks'.
            num_workers=WORKERS if on_gpus else 0,
            pin_memory=on_gpus,
        )
        self.samples = SyntheticTokens(
            recipe.model.vocab_size,
            recipe.model.seq_length,
            run.seed,
            attention_mask=attention_mask,
            uniform=on_gpus,  # as upstream's
        )

    def setup(self, stage: str = "") -> None:
        """Use the synthetic stream instead of NeMo's random tokens."""
        self._train_ds = self._validation_ds = self._test_ds = self.samples

    def train_dataloader(self) -> Any:
        """Return the loader of the training samples, beginning where the checkpoint ended."""
        self.data_sampler.init_global_step = self.trainer.global_step
        return super().train_dataloader()

    def state_dict(self) -> dict[str, int]:
        """Return the number of consumed samples, for a checkpoint to continue the stream after them."""
        steps = self.trainer.global_step - self.data_sampler.init_global_step
        return {"consumed_samples": self.data_sampler.compute_consumed_samples(steps)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue the stream after the samples consumed by the run that saved the checkpoint."""
        self.data_sampler.init_consumed_samples = state_dict["consumed_samples"]
        self.data_sampler.prev_consumed_samples = state_dict["consumed_samples"]
        self.data_sampler.if_first_step = 1
