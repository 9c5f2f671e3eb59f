"""Models that a workload file describes by sizes and fields of Megatron, trained by Megatron-Bridge."""

import json
from pathlib import Path

import pytest

from steptime.recipes.models import LatentAttention, MoeShape, Parallelism
from steptime.recipes.parameters import count_parameters

from .jobs import DATA, MIXTURE, mixture, tiny_of

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

END = 6
GBS = 4
ROUNDING = 2e-6
"""Relative tolerance in float32, as ranks, and an expert's tokens, are summed in other orders."""
ONE_RANK = Parallelism(data=1, virtual_pipeline=1)
EXPERT_2 = Parallelism(data=2, expert=2)

EXPERTS = {"num_moe_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 128}
MODELS = {
    "DeepSeek-V3: latent attention, a dense layer, groups of experts, further tokens": MIXTURE.model_copy(
        update={
            "num_query_groups": 8,
            "moe": MoeShape(
                **EXPERTS,
                moe_shared_expert_intermediate_size=128,
                num_dense_layers=1,
                moe_router_score_function="sigmoid",
                moe_router_load_balancing_type="seq_aux_loss",
            ),
            "mla": LatentAttention(
                q_lora_rank=96, kv_lora_rank=64, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32
            ),
            "mtp_num_layers": 1,
            "megatron_fields": {"moe_router_num_groups": 4, "moe_router_group_topk": 2, "qk_layernorm": True},
        }
    ),
    "GLM-4.5, its three layers on uneven stages, too": tiny_of(
        DATA / "unseen" / "workloads" / "glm4.5-26.08.yaml"
    ),
    "Qwen3": MIXTURE.model_copy(update={"kv_channels": 64, "megatron_fields": {"qk_layernorm": True}}),
    "a dense Qwen3": MIXTURE.model_copy(
        update={
            **{"moe": None, "kv_channels": 64, "share_embeddings_and_output_weights": True},
            "megatron_fields": {"qk_layernorm": True, "rotary_base": 1000000},
        }
    ),
}


def parameters_of(shape):
    """Return the number of parameters, with layers for further tokens, which published numbers leave out."""
    further = shape.mtp_num_layers or 0
    counted = count_parameters(shape.model_copy(update={"num_layers": shape.num_layers + further}))
    assert counted is not None
    return counted.total + further * 2 * shape.hidden_size**2


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (at > 0)) for at, name in enumerate(MODELS)]
)
def test_models_of_every_kind_train_alike_on_one_rank_and_on_two(train_on_bridge, tmp_path, name):
    shape = MODELS[name]
    losses = {}
    spreads = [ONE_RANK, EXPERT_2 if shape.moe else Parallelism(data=2)]
    if shape.num_layers % 2:
        spreads.append(Parallelism(data=2, pipeline=2, expert=2, first_stage_layers=2))
    if shape.share_embeddings_and_output_weights:
        spreads.append(Parallelism(data=1, pipeline=2))
    for at, spread in enumerate(spreads):
        folder = tmp_path / str(at)
        folder.mkdir()
        trained = train_on_bridge(mixture(spread, shape, gbs=GBS, max_steps=END), folder)
        assert trained.exit_code == 0, trained.log
        losses[at] = trained.losses
        assert trained.record("start")["num_parameters"] == pytest.approx(parameters_of(shape), rel=2e-3)
    assert losses[0][END - 1] < losses[0][0] - 0.1
    for at in range(1, len(spreads)):
        assert losses[at] == pytest.approx(losses[0], rel=ROUNDING)


def with_fields(**fields):
    return MIXTURE.model_copy(update={"megatron_fields": fields})


REFUSED = {
    "no such field": (
        with_fields(moe_aux_loss_coef=0.1),
        "moe_aux_loss_coef is no field of GPTModelProvider in this Megatron-Bridge; similar names are "
        "moe_aux_loss_coeff, moe_z_loss_coeff, dsa_indexer_loss_coeff: correct it",
    ),
    "another kind of value": (
        with_fields(rotary_base="10000"),
        "rotary_base is 10000 by default and cannot be '10000': give a value of the same type",
    ),
    "a truth value for a number": (
        with_fields(hidden_dropout=True),
        "hidden_dropout is 0.1 by default and cannot be True: give a value of the same type",
    ),
    "a field of the trainer": (
        with_fields(moe_grouped_gemm=True),
        "moe_grouped_gemm is set by the plan or the trainer: leave it out",
    ),
}
"""By mistake: the model, and the sentence up to the place of its field."""

BUILD_EACH = """\
import json, sys
from trainer.bridge.model_providers import model_provider
from trainer.errors import TrainerError
from trainer.run import _record
from trainer.spec import PlannedRun
sentences = []
for plan in json.load(open(sys.argv[0] + ".json")):
    try:
        model_provider(_record(PlannedRun, plan, ""), "cpu")
        sentences.append(None)
    except TrainerError as error:
        sentences.append(str(error))
json.dump(sentences, open("sentences.json", "w"))
sys.exit(0)
"""


def test_fields_that_megatron_bridge_does_not_take_are_refused_in_one_sentence(train_on_bridge, tmp_path):
    program = tmp_path / "build_each.py"
    program.write_text(BUILD_EACH, encoding="utf-8")
    plans = [mixture(ONE_RANK, shape).model_dump(mode="json") for shape, _ in REFUSED.values()]
    Path(f"{program}.json").write_text(json.dumps(plans), encoding="utf-8")
    built = train_on_bridge(mixture(ONE_RANK), tmp_path, program=str(program))
    assert built.exit_code == 0, built.log
    said = json.loads((tmp_path / "sentences.json").read_text(encoding="utf-8"))
    assert dict(zip(REFUSED, said, strict=True)) == {
        name: f"{sentence} (megatron_fields of the workload's model)."
        for name, (_, sentence) in REFUSED.items()
    }
