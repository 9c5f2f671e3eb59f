"""The Mamba2 mixer in plain torch; the kernels of mamba_ssm and causal_conv1d need CUDA.

The mixer itself, with its projections, its tensor parallelism and its checkpoint format, is Megatron-Core's.
This module has the three pieces that Megatron takes from the kernels: the causal convolution, the state-space
scan, and the gated norm. The scan follows Dao and Gu, "Transformers are SSMs" (2024), section 6: it uses
matrix products within a chunk of the sequence, and a recurrence from chunk to chunk.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.ssm.mamba_mixer import MambaMixer
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn


def chunked_scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, *, chunk_size: int) -> Tensor:
    """Compute the state-space recurrence of each head:

    state[t] = exp(dt[t] · a) · state[t - 1] + dt[t] · x[t] ⊗ b[t],  y[t] = state[t] · c[t],  state[-1] = 0.

    Args:
        x: the input, (batch, length, heads, head_dim).
        dt: the step of each head and position, above 0, (batch, length, heads).
        a: the decay rate of each head, below 0, (heads,).
        b: the input vectors, (batch, length, groups, state_dim); each is shared by heads / groups heads.
        c: the output vectors, shaped and shared like `b`.
        chunk_size: positions that are computed together; it affects only the cost and the rounding.

    Returns:
        y, shaped like `x`.
    """
    batch, length, heads, head_dim = x.shape
    groups = b.shape[2]
    padding = -length % chunk_size  # positions of step 0: they neither decay the state nor add to it
    per_group = (groups, heads // groups)
    x = _chunks(x * dt.unsqueeze(-1), padding, chunk_size).unflatten(3, per_group)
    b, c = _chunks(b, padding, chunk_size), _chunks(c, padding, chunk_size)
    # The logarithm of the decay from the chunk's begin up to each position, itself included.
    decay = _chunks(dt * a, padding, chunk_size).cumsum(dim=2).unflatten(3, per_group)

    # Within a chunk: every position reads what the positions up to it have put in.
    between = decay.unsqueeze(3) - decay.unsqueeze(2)  # (batch, chunk, reader, writer, group, head)
    future = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=x.device).triu(1)
    weight = between.masked_fill(future[:, :, None, None], -torch.inf).exp()
    weight = weight * torch.einsum("zkqgn,zkwgn->zkqwg", c, b).unsqueeze(-1)
    within = torch.einsum("zkqwgh,zkwghp->zkqghp", weight, x)

    # From chunk to chunk: what each adds to the state, then the state that each begins with.
    to_end = (decay[:, :, -1:] - decay).exp().unsqueeze(-1)
    added = torch.einsum("zkwgn,zkwghp->zkghpn", b, x * to_end)
    state = torch.zeros_like(added[:, 0])
    begins = []
    for chunk in range(added.shape[1]):
        begins.append(state)
        state = state * decay[:, chunk, -1].exp()[..., None, None] + added[:, chunk]
    carried = torch.einsum("zkqgn,zkghpn->zkqghp", c, torch.stack(begins, dim=1)) * decay.exp().unsqueeze(-1)
    return (within + carried).reshape(batch, length + padding, heads, head_dim)[:, :length]


def _chunks(values: Tensor, padding: int, chunk_size: int) -> Tensor:
    """Reshape (batch, length, …) to (batch, chunk, position in the chunk, …), with zeros after the end."""
    padded = F.pad(values, (0, 0) * (values.dim() - 2) + (0, padding))
    return padded.unflatten(1, (-1, chunk_size))


class GatedRMSNorm(nn.Module):
    """RMSNorm of `values · silu(gate)` for each group of channels separately, as mamba_ssm's RMSNormGated."""

    def __init__(self, channels: int, groups: int, epsilon: float, dtype: torch.dtype):
        super().__init__()
        self.groups = groups
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(channels, dtype=dtype, device=torch.cuda.current_device()))
        # Its channels are split over the ranks: their part of the gradients' norm counts on every rank.
        self.weight.tensor_model_parallel = True

    def forward(self, values: Tensor, gate: Tensor) -> Tensor:
        """Multiply `values` by `silu(gate)` and normalize the last dimension; the shape stays."""
        gated = (values * F.silu(gate)).unflatten(-1, (self.groups, -1))
        scale = gated.pow(2).mean(dim=-1, keepdim=True).add(self.epsilon).rsqrt()
        normalized: Tensor = (gated * scale).flatten(-2) * self.weight
        return normalized

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> Any:
        """Return the weight as split over the tensor-parallel ranks, for Megatron's checkpoints."""
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(keep_vars=True), prefix, {"weight": 0}, sharded_offsets
        )


class ReferenceMambaMixer(MambaMixer):
    """Megatron's Mamba2 mixer in plain torch, for training without context parallelism."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, rmsnorm=False, **options)  # its norm is a kernel of mamba_ssm
        self.rmsnorm = True
        self.norm = GatedRMSNorm(
            self.d_inner_local_tp, self.ngroups_local_tp, epsilon=1e-5, dtype=self.config.params_dtype
        )

    def ssm_training(self, zxBCdt: Tensor) -> Tensor:
        """Compute the mixer from the result of its input projection up to its output projection.

        Argument and result have the shape (length, batch, channels).
        """
        inner, state = self.d_inner_local_tp, self.ngroups_local_tp * self.d_state
        gate, convolved, dt = zxBCdt.transpose(0, 1).split(
            [inner, inner + 2 * state, self.nheads_local_tp], dim=-1
        )
        length = convolved.shape[1]
        convolved = F.silu(self.cp.conv1d(convolved.transpose(1, 2))[..., :length]).transpose(1, 2)
        x, b, c = convolved.split([inner, state, state], dim=-1)
        x = x.unflatten(-1, (-1, self.headdim))
        y = chunked_scan(
            x,
            F.softplus(dt + self.dt_bias),
            -self.A_log.exp(),
            b.unflatten(-1, (-1, self.d_state)),
            c.unflatten(-1, (-1, self.d_state)),
            chunk_size=self.chunk_size,
        )
        y = (y + self.D.unsqueeze(-1) * x).flatten(-2)
        return self.norm(y, gate).transpose(0, 1).contiguous()

    def _ssm_training(self, zxBCdt: Tensor, packed_seq_params: None = None) -> Tensor:
        """Do the same under the name that Megatron-Core has from 0.16 on; sequences are never packed here."""
        return self.ssm_training(zxBCdt)
