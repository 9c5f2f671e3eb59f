"""Compare trainer/cpu/mamba_reference.py with the formulas written out step by step; prints JSON errors."""

import json
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.environment import heavy_imports

with heavy_imports():
    from trainer.cpu.mamba_reference import GatedRMSNorm, ReferenceMambaMixer, chunked_scan

BATCH, HEADS, HEAD_DIM, GROUPS, STATE_DIM, HIDDEN = 2, 6, 5, 3, 4, 8
INNER = HEADS * HEAD_DIM


def recurrence(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """One position after the other, one head after the other."""
    y = torch.empty_like(x)
    for sample in range(x.shape[0]):
        for head in range(x.shape[2]):
            group = head // (x.shape[2] // b.shape[2])
            state = torch.zeros(x.shape[3], b.shape[3], dtype=x.dtype)
            for t in range(x.shape[1]):
                step = dt[sample, t, head]
                put_in = step * torch.outer(x[sample, t, head], b[sample, t, group])
                state = torch.exp(step * a[head]) * state + put_in
                y[sample, t, head] = state @ c[sample, t, group]
    return y


def scan_errors(length: int, chunk_size: int) -> dict[str, float]:
    """The largest difference of the outputs, and of the gradients of every input."""

    def inputs() -> list[Tensor]:
        random = torch.Generator().manual_seed(length)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        values = [
            draw(BATCH, length, HEADS, HEAD_DIM),
            torch.nn.functional.softplus(draw(BATCH, length, HEADS)),
            -draw(HEADS).exp(),
            draw(BATCH, length, GROUPS, STATE_DIM),
            draw(BATCH, length, GROUPS, STATE_DIM),
        ]
        return [value.requires_grad_() for value in values]

    def outputs_and_gradients(scan: Callable[..., Tensor]) -> list[Tensor]:
        values = inputs()
        y = scan(*values)
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).sum().backward()
        return [y.detach(), *(value.grad for value in values)]

    fast = outputs_and_gradients(lambda *values: chunked_scan(*values, chunk_size=chunk_size))
    slow = outputs_and_gradients(recurrence)
    names = ("y", "x", "dt", "a", "b", "c")
    return {
        name: float((one - other).abs().max() / other.abs().max())
        for name, one, other in zip(names, fast, slow, strict=True)
    }


@torch.no_grad()
def mixer_error() -> float:
    """The mixer from the input projection to the output projection, position by position."""
    random = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    mixer = ReferenceMambaMixer.__new__(
        ReferenceMambaMixer
    )  # its parameters only: no process groups, no projections
    torch.nn.Module.__init__(mixer)
    mixer.d_inner_local_tp, mixer.ngroups_local_tp, mixer.nheads_local_tp = INNER, GROUPS, HEADS
    mixer.d_state, mixer.headdim, mixer.chunk_size = STATE_DIM, HEAD_DIM, 4
    channels, length = INNER + 2 * GROUPS * STATE_DIM, 10
    mixer.conv1d = torch.nn.Conv1d(channels, channels, 4, groups=channels, padding=3, dtype=torch.float64)
    mixer.dt_bias, mixer.A_log, mixer.D = draw(HEADS), draw(HEADS), draw(HEADS)
    torch.cuda.current_device = lambda: torch.device("cpu")
    mixer.norm = GatedRMSNorm(INNER, GROUPS, epsilon=1e-5, dtype=torch.float64)
    mixer.norm.weight.data = draw(INNER)
    zxbcdt = draw(length, BATCH, 2 * INNER + 2 * GROUPS * STATE_DIM + HEADS)
    given = mixer.ssm_training(zxbcdt)

    weight, bias = mixer.conv1d.weight[:, 0], mixer.conv1d.bias
    gates, convolved = zxbcdt[..., :INNER], torch.empty(length, BATCH, channels, dtype=torch.float64)
    for t in range(length):
        total = bias.expand(BATCH, channels)
        for back in range(4):
            if t >= back:
                total = total + weight[:, 3 - back] * zxbcdt[t - back, :, INNER : INNER + channels]
        convolved[t] = total * torch.sigmoid(total)
    by_batch = convolved.transpose(0, 1)
    x = by_batch[..., :INNER].reshape(BATCH, length, HEADS, HEAD_DIM)
    b = by_batch[..., INNER : INNER + GROUPS * STATE_DIM].reshape(BATCH, length, GROUPS, STATE_DIM)
    c = by_batch[..., INNER + GROUPS * STATE_DIM :].reshape(BATCH, length, GROUPS, STATE_DIM)
    dt = torch.log1p(torch.exp(zxbcdt[..., -HEADS:] + mixer.dt_bias)).transpose(0, 1)
    y = recurrence(x, dt, -torch.exp(mixer.A_log), b, c) + mixer.D[:, None] * x
    expected = torch.empty_like(given)
    width = INNER // GROUPS
    for t in range(length):
        for group in range(GROUPS):
            part = slice(group * width, (group + 1) * width)
            gate = gates[t, :, part]
            gated = y.flatten(-2)[:, t, part] * gate * torch.sigmoid(gate)
            root = torch.sqrt((gated**2).mean(dim=-1, keepdim=True) + 1e-5)
            expected[t, :, part] = gated / root * mixer.norm.weight[part]
    return float((given - expected).abs().max())


if __name__ == "__main__":
    torch.manual_seed(1)
    scans = {
        f"{length} by {chunk}": scan_errors(length, chunk) for length, chunk in ((12, 4), (13, 4), (3, 8))
    }
    print(json.dumps({"scans": scans, "mixer": mixer_error()}))
