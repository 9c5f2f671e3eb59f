"""Model FLOPs by named formulas: operations of a training step on one sample, as publications count them.

Publications count differently: Nemotron4 15b has 4.345e14 FLOPs in NVIDIA's release 24.11, and 3.85e14 in
25.12. An MFU therefore always names its formula, and MFUs of different formulas are never compared. The
formulas are in `config/flops.yaml`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from steptime.errors import BrokenFiles, UserError
from steptime.frozen import Frozen
from steptime.recipes.config_files import Document, broken_entries, load_entry, read_entries
from steptime.recipes.models import Collective, HybridShape, Model, ModelShape, Recipe
from steptime.recipes.parameters import attention_weights
from steptime.settings import config_file

_PASSES = 3
"""Each matrix product is computed forward, and twice backward: for its input and for its weights."""


class Counted(Frozen):
    """How a FLOPs formula counts the operations of a model's layers.

    Experts, latent attention, Mamba layers and layers that predict further tokens are counted where the model
    has them. All numbers are integers, so the order of sums does not matter.
    """

    mlp_matrices: Literal[2, 3]
    """Number of matrices of an MLP: three if it is gated."""
    attention: Literal["full", "causal"] = "full"
    """`full`: all positions attend to one another; `causal`: to those before them, which is half of that."""
    grouped_queries: bool = True
    """Whether heads share keys and values as in the model; else each head is counted with its own."""
    mlp_width: PositiveInt | None = None
    """Width of the MLP in multiples of `hidden_size`; null for the model's own."""

    def flops(self, shape: ModelShape) -> float:
        """Return the floating-point operations of one training step on one sample."""
        if shape.hybrid is not None:
            per_token = self._count_hybrid(shape, shape.hybrid)
        else:
            further = shape.mtp_num_layers or 0
            layers = shape.num_layers + further
            products = layers * attention_weights(self._as_counted(shape)) + self._mlps(shape, further)
            # A further token is predicted from the one before it beside the layer's own input.
            products += further * 2 * shape.hidden_size**2
            windowed = shape.window_layers
            per_token = 2 * products + (layers - windowed) * self._scores(shape)
            per_token += windowed * self._scores_in_window(shape)
        outputs = 1 + (shape.mtp_num_layers or 0)
        per_token += 2 * outputs * shape.vocab_size * shape.hidden_size
        return float(_PASSES * shape.seq_length * per_token)

    def _as_counted(self, shape: ModelShape) -> ModelShape:
        if self.grouped_queries:
            return shape
        return shape.model_copy(update={"num_query_groups": shape.num_attention_heads})

    def _scores(self, shape: ModelShape) -> int:
        """Return a layer's operations per token on attention scores and the weighted sum of values."""
        latent, heads = shape.mla, shape.num_attention_heads
        if latent is None:
            width = 2 * heads * self._as_counted(shape).head_width
        else:
            width = heads * (latent.qk_head_dim + latent.qk_pos_emb_head_dim + latent.v_head_dim)
        return (2 if self.attention == "full" else 1) * shape.seq_length * width

    def _scores_in_window(self, shape: ModelShape) -> int:
        """Return the same of a layer with a sliding window, over the positions that it covers."""
        reach = min((shape.window_size or 0) + 1, shape.seq_length)
        # Of the average token: the first ones have fewer positions before them.
        return self._scores(shape) * reach * (2 * shape.seq_length - reach) // shape.seq_length**2

    def _mlps(self, shape: ModelShape, further: int) -> int:
        """Return the number of MLP and expert weights, over all layers, that a token is multiplied with."""
        width = shape.ffn_hidden_size if self.mlp_width is None else self.mlp_width * shape.hidden_size
        if shape.moe is None:
            return (shape.num_layers + further) * self.mlp_matrices * shape.hidden_size * width
        shared = shape.moe.moe_shared_expert_intermediate_size or 0
        chosen = shape.moe.moe_router_topk * shape.moe.moe_ffn_hidden_size + shared
        widths = (shape.num_layers - shape.expert_layers) * width + (shape.expert_layers + further) * chosen
        return self.mlp_matrices * shape.hidden_size * widths

    def _count_hybrid(self, shape: ModelShape, hybrid: HybridShape) -> int:
        """Return the forward-pass operations per token of a hybrid model, without the output layer."""
        hidden = shape.hidden_size
        attending = self._as_counted(shape).model_copy(update={"kv_channels": hybrid.attention_head_dim})
        groups_width = hybrid.mamba_num_groups * hybrid.mamba_state_dim
        inner = hybrid.mamba_num_heads * hybrid.mamba_head_dim
        mamba = (
            hidden * (3 * inner + 2 * groups_width + hybrid.mamba_num_heads)
            + hidden * hybrid.expand * (hybrid.chunk_size + 2 * hybrid.mamba_state_dim)
            + hybrid.chunk_size * groups_width
        )
        mlp = self.mlp_matrices * hidden * shape.ffn_hidden_size
        return (
            hybrid.num_attention_layers * (2 * attention_weights(attending) + self._scores(attending))
            + hybrid.num_mlp_layers * 2 * mlp
            + hybrid.num_mamba_layers * 2 * mamba
        )


class Formula(Frozen):
    """An entry of `config/flops.yaml`: model FLOPs are counted by sizes, stated in a document, or logged."""

    source: str
    architectures: tuple[str, ...] = Field(min_length=1)
    """Names from `plug_points.MODEL_FAMILIES`."""
    counted: Counted | None = None
    """How operations are counted from the model's sizes."""
    stated: dict[str, PositiveFloat] | None = Field(default=None, min_length=1)
    """Operations per sample by size, stated by the document without a formula; unknown for other sizes."""
    logged: bool = False
    """Whether the TFLOPS per GPU that the framework logs are taken as they are."""

    @model_validator(mode="after")
    def _in_one_way(self) -> Self:
        if sum((self.counted is not None, self.stated is not None, self.logged)) != 1:
            raise ValueError("set exactly one of these fields: counted, stated, or logged: true")
        return self


def flops_file() -> Path:
    """Return the path of the file of FLOPs formulas."""
    return config_file("flops.yaml")


def formula_names() -> tuple[str, ...]:
    """Return the names of all formulas, in order. Raises UserError if `config/flops.yaml` cannot be read."""
    return tuple(_document().content)


def load_formula(name: str) -> Formula:
    """Load a formula by name. Raises UserError if there is none, or its entry has a mistake."""
    return load_entry(_document(), Formula, name, "formula")


def broken_formulas() -> BrokenFiles | None:
    """Return all mistakes in `config/flops.yaml`; None if there are none."""
    return broken_entries(_document, Formula)


def misfit(name: str, shape: Model) -> str | None:
    """Return why a formula does not fit a model or a collective operation; None if it fits.

    Raises UserError if the formula does not exist.
    """
    formula = load_formula(name)
    if (of_collectives := "collective" in formula.architectures) is not isinstance(shape, Collective):
        return f"is {'' if of_collectives else 'not '}for collective operations"
    if isinstance(shape, Collective):
        return None
    if not isinstance(shape, ModelShape):
        return (
            "needs a model's sizes, which the name of a Megatron-Bridge recipe does not give"
            if formula.counted
            else None
        )
    if shape.architecture not in formula.architectures:
        return f"counts {', '.join(formula.architectures)} models, and this is {shape.architecture}"
    return None


def model_flops(shape: Model, formula: str) -> float:
    """Return the floating-point operations of a training step on one sample, by the named formula.

    Raises UserError if the formula is unknown, does not fit the model, or takes FLOPs from a
    publication or a log instead of computing them.
    """
    described = load_formula(formula)
    if not isinstance(shape, ModelShape):
        raise UserError(
            f"the formula {formula} {misfit(formula, shape)}: choose one that takes FLOPs from the "
            "training's log (logged: true)."
        )
    if described.counted is None:
        raise UserError(
            f"the formula {formula} cannot compute the FLOPs of a model: use a formula that has the field "
            "counted."
        )
    if (problem := misfit(formula, shape)) is not None:
        raise UserError(f"the formula {formula} {problem}: use the formula of the recipe's publication.")
    return described.counted.flops(shape)


class Flops(NamedTuple):
    """Model FLOPs of one sample, and in words where they are from."""

    per_sample: float | None
    """Operations per sample; None if unknown."""
    source: str
    logged: bool = False
    """Whether the document uses the TFLOPS that a run logs, in place of these."""


def recipe_flops(recipe: Recipe) -> Flops:
    """Return the model FLOPs of one sample by a recipe's own formula.

    Raises UserError if the formula is unknown or does not fit the model.
    """
    name = recipe.flops_formula
    formula = load_formula(name)
    if isinstance(recipe.model, Collective):
        return Flops(None, "a collective operation computes no model")
    if formula.logged:
        return Flops(None, "the TFLOPS that a run logs", logged=True)
    if formula.stated is not None:
        stated: Mapping[str, float] = formula.stated
        source = f"as {name} states" if recipe.size in stated else f"{name} states none for {recipe.size}"
        return Flops(stated.get(recipe.size), source)
    return Flops(model_flops(recipe.model, name), f"by the formula {name}")


def _document() -> Document:
    return read_entries(flops_file(), "names no formulas, as in llama3.1-25.04: {source: …}")
