"""Nemotron-H: Mamba2, attention and squared-ReLU MLP layers in a pattern, RMSNorm, no position embeddings."""

from typing import Any

from nemo.collections.common.tokenizers.null_tokenizer import NullTokenizer
from nemo.collections.llm.gpt.model.ssm import MambaModel, NemotronHConfigBase

from trainer.errors import TrainerError
from trainer.spec import HybridShape, ModelShape
from trainer.versions import has_option

EXPANSION = 2
"""Ratio of the Mamba layers' width to the hidden size in NeMo before 2.4."""


def build_model(shape: ModelShape, device: str, device_options: dict[str, Any]) -> MambaModel:
    """Return NeMo's hybrid model in the planned shape; its weights are not allocated yet.

    Raises ValueError if the shape has no `hybrid`.
    """
    hybrid = shape.hybrid
    if hybrid is None:  # read_run refuses such a plan
        raise ValueError("the planned hybrid model has no sizes of its Mamba layers")
    if device == "cpu":
        from trainer.cpu.cpu_layers import hybrid_stack

        device_options = {
            **device_options,
            "mamba_stack_spec": hybrid_stack(hybrid.chunk_size),
            "bf16": False,  # NeMo's default for this family alone
        }
    config = NemotronHConfigBase(
        hybrid_override_pattern=hybrid.pattern,
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_query_groups,
        kv_channels=hybrid.attention_head_dim,
        **_mamba_heads(shape, hybrid),
        mamba_head_dim=hybrid.mamba_head_dim,
        mamba_num_groups=hybrid.mamba_num_groups,
        mamba_state_dim=hybrid.mamba_state_dim,
        vocab_size=shape.vocab_size,
        seq_length=shape.seq_length,
        **device_options,
    )
    # NeMo takes this family's vocabulary from the tokenizer; NullTokenizer counts one more than it is given.
    return MambaModel(config, tokenizer=NullTokenizer(vocab_size=shape.vocab_size - 1))


def _mamba_heads(shape: ModelShape, hybrid: HybridShape) -> dict[str, int]:
    """Return the config field for the number of Mamba heads; empty before NeMo 2.4, which derives the number.

    Raises TrainerError if NeMo would derive another number than the plan has.
    """
    if has_option(NemotronHConfigBase, "mamba_num_heads"):
        return {"mamba_num_heads": hybrid.mamba_num_heads}
    heads = EXPANSION * shape.hidden_size // hybrid.mamba_head_dim
    if hybrid.mamba_num_heads != heads:
        raise TrainerError(
            f"this NeMo derives {heads} Mamba heads from hidden_size and mamba_head_dim, but the plan has "
            f"{hybrid.mamba_num_heads}: choose an image with NeMo 2.4 or newer."
        )
    return {}
