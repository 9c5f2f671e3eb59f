"""Llama 3.1 and Nemotron4 in plain torch, with Megatron-Core's names, layouts and initial weights."""

import math
import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.drawing import Draw, drawn
from trainer.norms import ZeroCenteredLayerNorm
from trainer.spec import ModelShape

EPSILON = 1e-5
"""Added to the variance by the norms."""
_LLAMA_3_1_SCALING = {"factor": 8.0, "low": 1.0, "high": 4.0, "trained_length": 8192}
"""How Llama 3.1 stretches slow rotations beyond the sequence length of its first training."""


@dataclass(frozen=True)
class Style:
    """The differences between the layers of the families."""

    gated: bool
    """Whether the MLP is SwiGLU; else its activation is a squared ReLU."""
    root_mean_square: bool
    """Whether the norm is RMSNorm; else it is a LayerNorm that stores its weight minus 1."""
    rotary_share: float
    """Share of each head's dimensions that are rotated by position."""
    rotary_base: float
    stretched: bool
    """Whether slow rotations are stretched as Llama 3.1 does."""
    initial_std: dict[int, float]
    """Standard deviation of the initial weights by hidden size; the key 0 is for all other sizes."""


STYLES = {
    "llama": Style(
        gated=True,
        root_mean_square=True,
        rotary_share=1.0,
        rotary_base=500_000,
        stretched=True,
        initial_std={0: 0.02},
    ),
    "nemotron4": Style(
        gated=False,
        root_mean_square=False,
        rotary_share=0.5,
        rotary_base=10_000,
        stretched=False,
        initial_std={0: 0.0134, 18432: 0.0063},
    ),
}
"""Styles by architecture as in the plan; the values are those of NeMo's configs."""


def build_model(shape: ModelShape, seed: int, device: str, *, half: bool) -> "Model":
    """Return the model with its initial weights, in bf16 if `half`, else in fp32."""
    style = STYLES[shape.architecture]
    with torch.device("meta"):
        model = Model(shape, style)
    model.to(torch.bfloat16 if half else torch.float32)
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, shape, style, seed)
        for buffer, values in zip((model.cos, model.sin), rotations(shape, style), strict=True):
            buffer.copy_(values)
    return model


def _fill(name: str, parameter: nn.Parameter, shape: ModelShape, style: Style, seed: int) -> None:
    """Set initial values: ones or zeros for norms, and Megatron's draw, by name, for matrices."""
    if parameter.ndim == 1:
        is_scale = style.root_mean_square and name.endswith("weight")
        parameter.fill_(1.0 if is_scale else 0.0)
        return
    layer = [int(number) for number in re.findall(r"\.layers\.(\d+)\.", name)]
    std = style.initial_std.get(shape.hidden_size, style.initial_std[0])
    if re.search(r"linear_(proj|fc2)\.", name):  # at a layer's end
        std /= math.sqrt(2 * shape.num_layers)
    draw: Draw = lambda whole: whole.normal_(0.0, std)  # noqa: E731
    megatron_name = "module." + re.sub(r"\.layers\.\d+\.", ".layers.", name)
    device = parameter.device.type
    parameter.copy_(drawn(parameter.shape, draw, seed=seed, name=megatron_name, layer=layer, device=device))


def rotations(shape: ModelShape, style: Style) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each position's rotations: [seq_length, rotated dimensions / 2], fp32."""
    rotated = int(shape.hidden_size // shape.num_attention_heads * style.rotary_share)
    frequency = style.rotary_base ** -(torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)
    if style.stretched:
        frequency = _stretched(frequency)
    angle = torch.outer(torch.arange(shape.seq_length, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def _stretched(frequency: Tensor) -> Tensor:
    """Stretch wavelengths above the trained length, keep short ones, and interpolate between the two."""
    scaling = _LLAMA_3_1_SCALING
    waves = scaling["trained_length"] * frequency / (2 * math.pi)  # within the trained length
    kept = ((waves - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return frequency * (kept + (1 - kept) / scaling["factor"])


class Model(nn.Module):
    """A language model: it takes tokens and returns the mean cross-entropy of the next tokens."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: ModelShape, style: Style):
        super().__init__()
        self.embedding = nn.ModuleDict({"word_embeddings": nn.Embedding(shape.vocab_size, shape.hidden_size)})
        self.decoder = Decoder(shape, style)
        self.output_layer = OutputLayer(shape.hidden_size, shape.vocab_size, bias=False)
        for name, values in zip(("cos", "sin"), rotations(shape, style), strict=True):
            self.register_buffer(name, values, persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a micro batch; tokens and labels are [micro batch, seq_length]."""
        hidden = self.decoder(self.embedding["word_embeddings"](tokens), self.cos, self.sin)
        loss: Tensor = self.output_layer(hidden, labels)
        return loss

    def compile_parts(self, mode: str) -> None:
        """Let torch.compile fuse the parts; layers are alike, so one is compiled for all."""
        for part in (*self.decoder.layers, self.decoder.final_layernorm, self.output_layer):
            part.compile(mode=mode, dynamic=False)


class OutputLayer(nn.Linear):
    """The output layer and the loss: compiled together, they keep no fp32 copy of the logits."""

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of [micro batch, seq_length, hidden_size] for [micro batch, seq_length]."""
        logits = F.linear(hidden, self.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Decoder(nn.Module):
    """The layers, followed by a norm."""

    def __init__(self, shape: ModelShape, style: Style):
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape, style) for _ in range(shape.num_layers))
        self.final_layernorm = norm(shape, style)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Take and return [micro batch, seq_length, hidden_size]."""
        for layer in self.layers:
            hidden = layer(hidden, cos, sin)
        normalized: Tensor = self.final_layernorm(hidden)
        return normalized


class Layer(nn.Module):
    """Attention and then an MLP, each with a residual connection."""

    def __init__(self, shape: ModelShape, style: Style):
        super().__init__()
        self.input_layernorm = norm(shape, style)
        self.self_attention = SelfAttention(shape)
        self.pre_mlp_layernorm = norm(shape, style)
        self.mlp = Mlp(shape, gated=style.gated)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Take and return [micro batch, seq_length, hidden_size]."""
        hidden = hidden + self.self_attention(self.input_layernorm(hidden), cos, sin)
        mixed: Tensor = hidden + self.mlp(self.pre_mlp_layernorm(hidden))
        return mixed


class SelfAttention(nn.Module):
    """Causal attention with grouped queries; the queries, key and value of a group are adjacent."""

    def __init__(self, shape: ModelShape):
        super().__init__()
        self.groups = shape.num_query_groups
        self.queries = shape.num_attention_heads // shape.num_query_groups
        self.head_dim = shape.hidden_size // shape.num_attention_heads
        width = self.groups * (self.queries + 2) * self.head_dim
        self.linear_qkv = nn.Linear(shape.hidden_size, width, bias=False)
        self.linear_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Take and return [micro batch, seq_length, hidden_size]."""
        batch, length, _ = hidden.shape
        mixed = self.linear_qkv(hidden).view(batch, length, self.groups, self.queries + 2, self.head_dim)
        query, key, value = mixed.split([self.queries, 1, 1], dim=3)
        query, key, value = (heads.flatten(2, 3).transpose(1, 2) for heads in (query, key, value))
        attended = F.scaled_dot_product_attention(
            rotate(query, cos, sin), rotate(key, cos, sin), value, is_causal=True, enable_gqa=True
        )
        projected: Tensor = self.linear_proj(attended.transpose(1, 2).flatten(2))
        return projected


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first dimensions of every head by its position; [..., seq_length, head_dim] in and out.

    Dimension i turns with dimension i + half of those that turn.
    """
    half = cos.shape[-1]
    first, second, rest = heads.split([half, half, heads.shape[-1] - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Mlp(nn.Module):
    """Two matrices with a squared ReLU between them, or SwiGLU, whose gate and up matrices are one."""

    def __init__(self, shape: ModelShape, *, gated: bool):
        super().__init__()
        self.gated = gated
        width = shape.ffn_hidden_size * (2 if gated else 1)
        self.linear_fc1 = nn.Linear(shape.hidden_size, width, bias=False)
        self.linear_fc2 = nn.Linear(shape.ffn_hidden_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Take and return [micro batch, seq_length, hidden_size]."""
        inner = self.linear_fc1(hidden)
        if self.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        else:
            inner = F.relu(inner).square()
        projected: Tensor = self.linear_fc2(inner)
        return projected


def norm(shape: ModelShape, style: Style) -> nn.Module:
    """Return the family's norm over the hidden dimension."""
    if style.root_mean_square:
        return nn.RMSNorm(shape.hidden_size, eps=EPSILON)
    return ZeroCenteredLayerNorm(shape.hidden_size, EPSILON)
