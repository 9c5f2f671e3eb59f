"""A synthetic token stream, the same for any number of ranks.

Sample `i` depends on the seed and on `i` alone. Each step's global batch has the next samples of the stream,
divided among the data-parallel ranks. So it does not depend on the number of ranks, and a run that loads a
checkpoint continues with the batch that an uninterrupted run would have had.
"""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

RESTART_PROBABILITY = 0.25
WORKERS = 8
"""Processes per rank on GPUs that prepare samples ahead of their step."""
ENDLESS = 2**40
"""Samples in the stream: more than any run consumes."""


class SyntheticTokens(Dataset):
    """Tokens to train on: uniformly random as in NeMo's mock data, or a sequence that a model can learn.

    Uniform tokens keep the loss at ln(vocabulary). In the learnable sequence each token is the previous one
    plus one (modulo the vocabulary) or, with `RESTART_PROBABILITY`, a random one: the n-th token of the
    vocabulary with a probability ∝ 1/n. A model first learns which tokens are frequent, then to add one.
    """

    def __init__(self, vocab_size: int, seq_length: int, seed: int, *, attention_mask: bool, uniform: bool):
        self.vocab_size = vocab_size
        self.seq_length = seq_length
        self.seed = seed
        self.uniform = uniform
        self.fixed: dict[str, torch.Tensor] = {
            "loss_mask": torch.ones(seq_length),
            "position_ids": torch.arange(seq_length),
        }
        if (
            attention_mask
        ):  # Megatron's own attention takes a mask (True is hidden), Transformer Engine's needs none
            self.fixed["attention_mask"] = torch.ones(1, seq_length, seq_length).tril() < 0.5

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.from_numpy(self.tokens(index))
        return {"tokens": tokens[:-1], "labels": tokens[1:], **self.fixed}

    def tokens(self, index: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Return the tokens of sample number `index`, shape (seq_length + 1,)."""
        random = np.random.default_rng((self.seed, index))
        length = self.seq_length + 1
        if self.uniform:
            return random.integers(self.vocab_size, size=length)
        # exp of a uniform number is log-uniform, and its integer part follows Zipf's law with exponent 1.
        fresh = np.exp(random.random(length) * np.log(self.vocab_size + 1)).astype(np.int64) - 1
        position = np.arange(length)
        restarts = random.random(length) < RESTART_PROBABILITY
        restarts[0] = True
        last_restart = np.maximum.accumulate(np.where(restarts, position, 0))
        tokens: np.ndarray[Any, np.dtype[np.int64]] = fresh[last_restart] + position - last_restart
        return tokens % self.vocab_size

    collate_fn = staticmethod(default_collate)
