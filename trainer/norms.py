"""A norm that torch does not have."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ZeroCenteredLayerNorm(nn.Module):
    """LayerNorm whose weight is stored as the difference from 1 (`layernorm1p`); torch has none."""

    def __init__(self, hidden_size: int, eps: float, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.epsilon = eps
        self.weight = nn.Parameter(torch.zeros(hidden_size, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(hidden_size, dtype=dtype))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalize the last dimension in fp32; bf16 is too coarse for a scale near 1 (steps of 1/128)."""
        scale, shift = 1 + self.weight.float(), self.bias.float()
        normalized = F.layer_norm(hidden_states.float(), scale.shape, scale, shift, self.epsilon)
        return normalized.to(hidden_states.dtype)
