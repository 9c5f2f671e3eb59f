"""Models that a plan describes by NeMo's config: mixtures of experts train alike however they are spread."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from steptime.recipes.models import LatentAttention, Mode, ModelShape, MoeShape, NemoConfig, Parallelism
from steptime.recipes.parameters import count_parameters

from .conftest import Train
from .jobs import DATA, MIXTURE, Trained, mixture, tiny_of

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

SAVED_AT = 5
END = 7
GBS = 4
ROUNDING = 2e-6
"""Relative tolerance in float32, as ranks, and an expert's tokens, are summed in other orders."""
ONE_RANK = Parallelism(data=1, virtual_pipeline=1)
EXPERT_2 = Parallelism(data=2, expert=2)
UNSEEN = DATA / "unseen" / "workloads" / "glm4.5-26.08.yaml"


@pytest.fixture(scope="module")
def one_rank(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(mixture(ONE_RANK, gbs=GBS, max_steps=END), tmp_path_factory.mktemp("one_rank"))


@pytest.fixture(scope="module")
def saved(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    run = mixture(EXPERT_2, gbs=GBS, max_steps=SAVED_AT, mode=Mode.CHECKPOINT_SAVE)
    return train(run, tmp_path_factory.mktemp("saved"))


def test_one_rank_trains_and_learns(one_rank: Trained) -> None:
    assert one_rank.exit_code == 0, one_rank.log
    losses = one_rank.losses
    assert list(losses) == list(range(END))
    assert losses[0] == pytest.approx(math.log(4096), abs=0.2)
    assert losses[END - 1] < losses[0] - 0.15
    # Embedding, output 4096·256 each; per layer attention 3·256², four experts of 3·256·512, their router,
    # two norms; a last norm.
    parameters = 2 * 4096 * 256 + 2 * (3 * 256**2 + 4 * 3 * 256 * 512 + 4 * 256 + 2 * 256) + 256
    assert one_rank.record("start")["num_parameters"] == parameters


def test_expert_parallel_ranks_take_the_same_steps(one_rank: Trained, saved: Trained) -> None:
    assert saved.exit_code == 0, saved.log
    started = saved.record("start")
    assert (started["expert_parallel"], started["data_parallel"]) == (2, 2)
    assert started["num_parameters"] == one_rank.record("start")["num_parameters"]
    assert saved.losses == pytest.approx(
        {step: one_rank.losses[step] for step in range(SAVED_AT)}, rel=ROUNDING
    )


def test_a_load_continues_as_if_uninterrupted(
    train: Train, one_rank: Trained, saved: Trained, tmp_path: Path
) -> None:
    run = mixture(
        EXPERT_2,
        gbs=GBS,
        mode=Mode.CHECKPOINT_LOAD,
        checkpoint_path=str(saved.checkpoints),
        first_step=SAVED_AT,
        max_steps=END,
    )
    loaded = train(run, tmp_path)
    assert loaded.exit_code == 0, loaded.log
    # The first loss depends on weights and data, the second also on the optimizer's state and learning rate.
    assert loaded.losses == pytest.approx(
        {step: one_rank.losses[step] for step in range(SAVED_AT, END)}, rel=ROUNDING
    )


def test_another_spread_of_experts_cannot_load_it(train: Train, saved: Trained, tmp_path: Path) -> None:
    run = mixture(
        ONE_RANK,
        gbs=GBS,
        mode=Mode.CHECKPOINT_LOAD,
        checkpoint_path=str(saved.checkpoints),
        first_step=SAVED_AT,
        max_steps=END,
    )
    loaded = train(run, tmp_path)
    assert loaded.exit_code != 0
    assert (
        f"the checkpoint {saved.checkpoints} was saved with expert parallel 2, but this run has 1: on the "
        "CPU, load it in a run with expert parallel 2."
    ) in loaded.log
    assert "KeyError" not in loaded.log


def described(config: str, **fields: Any) -> ModelShape:
    return MIXTURE.model_copy(update={"nemo": NemoConfig(config=config, fields=fields)})


REFUSED = {
    "no such config": (
        described("MixtralConfg"),
        "nemo.collections.llm of this NeMo has no GPT config class 'MixtralConfg'; similar names are "
        "MixtralConfig, MixtralConfig8x7B, MixtralConfig8x3B: correct it in the workload's model.",
    ),
    "another class of NeMo's": (
        described("MockDataModule"),
        "nemo.collections.llm of this NeMo has no GPT config class 'MockDataModule': correct it in the "
        "workload's model.",
    ),
    "layers for GPUs alone": (
        described("Llama4Experts16Config"),
        "Llama4Experts16Config has layers of its own, which need Transformer Engine: it trains on GPUs only.",
    ),
    "no such field": (
        described("MixtralConfig", moe_aux_loss_coef=0.1),
        "MixtralConfig of this NeMo has no field 'moe_aux_loss_coef'; similar names are moe_aux_loss_coeff, "
        "moe_z_loss_coeff: correct it in the workload's model.",
    ),
    "another kind of value": (
        described("MixtralConfig", moe_aux_loss_coeff="0.1"),
        "moe_aux_loss_coeff of MixtralConfig is 0.01 in this NeMo and cannot be '0.1': give a value of the "
        "same type in the workload's model, or leave it out.",
    ),
    "a field of the trainer": (
        described("MixtralConfig", moe_grouped_gemm=True),
        "moe_grouped_gemm of MixtralConfig is set by the trainer: leave it out of the workload.",
    ),
}
"""By mistake: the model, and the sentence."""

BUILD_EACH = """\
import json, sys
from trainer import devices, families
from trainer.errors import TrainerError
from trainer.run import _record
from trainer.spec import ModelShape
sentences = []
for shape in json.load(open(sys.argv[0] + ".json")):
    try:
        families.builder("gpt")(_record(ModelShape, shape, ""), "cpu", devices.model_options("cpu"))
        sentences.append(None)
    except TrainerError as error:
        sentences.append(str(error))
json.dump(sentences, open("sentences.json", "w"))
sys.exit(0)
"""


def test_what_nemo_does_not_have_is_refused_in_one_sentence(train: Train, tmp_path: Path) -> None:
    program = tmp_path / "build_each.py"
    program.write_text(BUILD_EACH, encoding="utf-8")
    shapes = [shape.model_dump(mode="json") for shape, _ in REFUSED.values()]
    Path(f"{program}.json").write_text(json.dumps(shapes), encoding="utf-8")
    built = train(mixture(ONE_RANK), tmp_path, program=str(program))
    assert built.exit_code == 0, built.log
    said = json.loads((tmp_path / "sentences.json").read_text(encoding="utf-8"))
    assert dict(zip(REFUSED, said, strict=True)) == {
        name: sentence for name, (_, sentence) in REFUSED.items()
    }


OTHERS = {
    "GLM-4.5, its three layers on uneven stages, too": tiny_of(UNSEEN),
    "DeepSeek-V3": MIXTURE.model_copy(
        update={
            "num_query_groups": 8,
            "moe": MoeShape(
                num_moe_experts=8,
                moe_router_topk=2,
                moe_ffn_hidden_size=128,
                moe_shared_expert_intermediate_size=128,
                num_dense_layers=1,
                moe_router_score_function="sigmoid",
                moe_router_load_balancing_type="seq_aux_loss",
            ),
            "mla": LatentAttention(
                q_lora_rank=96, kv_lora_rank=64, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=32
            ),
            "nemo": NemoConfig(
                config="DeepSeekV3Config", fields={"moe_router_num_groups": 4, "moe_router_group_topk": 2}
            ),
        }
    ),
    "Qwen3": MIXTURE.model_copy(update={"kv_channels": 64, "nemo": NemoConfig(config="Qwen3Config30B_A3B")}),
    "a dense Qwen3": MIXTURE.model_copy(
        update={"moe": None, "kv_channels": 64, "nemo": NemoConfig(config="Qwen3Config8B")}
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OTHERS)
def test_other_models_of_nemos_train_and_learn(train: Train, tmp_path: Path, name: str) -> None:
    shape = OTHERS[name]
    losses = {}
    spreads = [ONE_RANK, EXPERT_2 if shape.moe else Parallelism(data=2)]
    if shape.num_layers % 2:
        spreads.append(Parallelism(data=2, pipeline=2, expert=2, first_stage_layers=1))
    for spread in spreads:
        folder = tmp_path / str(spread.world_size)
        folder.mkdir()
        trained = train(mixture(spread, shape, gbs=GBS, max_steps=END), folder)
        assert trained.exit_code == 0, trained.log
        losses[spread.world_size] = trained.losses
        counted = count_parameters(shape)
        assert counted is not None
        if shape.mtp_num_layers is None:  # published numbers leave out these layers
            assert trained.record("start")["num_parameters"] == pytest.approx(counted.total, rel=2e-3)
    assert losses[1][END - 1] < losses[1][0] - 0.1
    for spread in spreads[1:]:
        assert losses[spread.world_size] == pytest.approx(losses[1], rel=ROUNDING)
