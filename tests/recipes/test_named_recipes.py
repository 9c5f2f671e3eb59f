"""Recipes of Megatron-Bridge by name: plans and commands, compared with upstream's parser and documents.

What upstream's source says is in tests/data/megatron_bridge, by tag (recorders/megatron_bridge).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from printed_tables import by_name, imported
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import UserError
from steptime.recipes.megatron_bridge import bridge_command, bridge_release
from steptime.recipes.models import Mode, NamedRecipe, ProfileWindow, Recipe, Run, Window
from steptime.recipes.parameters import Parameters, stated_parameters
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.staging.checking import require_trainable
from tests.stand_ins.megatron_bridge.argument_parser import parser_of, recorded

DATA = Path(__file__).parents[1] / "data" / "megatron_bridge"
GPT_OSS, QWEN = "gpt-oss-26.02", "qwen3-26.02"
BY_NAME = [name for name in list_workloads() if by_name(name) and not imported(name)]


ROWS = [recipe for name in BY_NAME for recipe, _ in load_workload(name).recipes()]
"""All rows of the documents."""


def run_of(recipe: Recipe, mode: Mode = Mode.PERFORMANCE, **fields: Any) -> Run:
    profile = ProfileWindow(first_step=10, last_step=11, ranks=(0, 4)) if mode is Mode.PROFILE else None
    plain = {
        **{"experiment": "pretrain", "max_steps": 50, "window": Window(first=35, last=49)},
        **{"time_limit_s": 1800, "cluster": "local", "profile": profile},
    }
    return Run(recipe=recipe, mode=mode, **plain | fields)


RELEASES = tuple(recorded())


def in_release(row: Recipe, release: str) -> Recipe | None:
    """Return a row with the image of another release, or None if that lacks its recipe or its type of GPU.

    The oldest release names a model and its size, and has no variants.
    """
    described, model = bridge_release(f"nemo:{release}"), row.model
    assert isinstance(model, NamedRecipe)
    if release == "25.11":
        names = {
            f"{family}_{size}": (family, size) for family, of in described.recipes.items() for size in of
        }
        family, recipe = names.get(model.recipe, ("", ""))
        model = model.model_copy(update={"family": family, "recipe": recipe, "variant": None})
    if model.recipe not in described.recipes.get(model.family, {}) or row.gpu_type not in described.gpu_types:
        return None
    return row.model_copy(update={"image": f"registry.example/nemo:{release}", "model": model})


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("mode", list(Mode))
def test_every_release_takes_our_arguments(release: str, mode: Mode) -> None:
    """Upstream's parser reads in them what was planned."""
    started = [moved for row in ROWS if (moved := in_release(row, release)) is not None]
    assert len({recipe.workload for recipe in started}) > 1
    parser = parser_of(release)
    for recipe in started:
        model = recipe.model
        assert isinstance(model, NamedRecipe)
        fields = {"checkpoint_path": "/scratch/saved"} if mode is Mode.CHECKPOINT_LOAD else {}
        script, *said = bridge_command(run_of(recipe, mode, **fields))
        assert script.startswith("/opt/Megatron-Bridge/scripts/performance/")
        told, rest = parser.parse_known_args(said)
        assert all("=" in text and not text.startswith("-") for text in rest), rest
        spread, old = recipe.parallelism, release == "25.11"
        expected = {
            **{"gpu": recipe.gpu_type, "num_gpus": recipe.gpus, "compute_dtype": recipe.dtype},
            **{"max_steps": 50, "tensor_model_parallel_size": spread.tensor},
            "pipeline_model_parallel_size": spread.pipeline,
            "virtual_pipeline_model_parallel_size": spread.virtual_pipeline,
            "expert_model_parallel_size": spread.expert,
            "expert_tensor_parallel_size": spread.expert_tensor,
            "micro_batch_size": recipe.micro_batch_size,
            "global_batch_size": recipe.global_batch_size,
            "model_name" if old else "model_family_name": model.family,
            "model_size" if old else "model_recipe_name": model.recipe,
            **({} if old else {"config_variant": model.variant}),
        }
        assert expected.items() <= vars(told).items()


def test_what_a_release_has_is_what_its_parser_takes() -> None:
    for release, parser in recorded().items():
        described = bridge_release(f"nvcr.io/nvidia/nemo:{release}")
        assert described.source.startswith(f"NVIDIA-NeMo/Megatron-Bridge {parser['tag']}, ")
        assert set(described.gpu_types) <= set(parser["arguments"]["--gpu"]["choices"])
        assert set(described.dtypes.values()) == set(parser["arguments"]["--compute_dtype"]["choices"])


@pytest.mark.parametrize(
    ("release", "mode", "further"),
    [
        (
            "25.11",
            Mode.CHECKPOINT_SAVE,
            {
                "checkpoint.save=code/nemo_experiments/default/checkpoints",
                "checkpoint.save_interval=50",
                "checkpoint.async_save=false",
            },
        ),
        ("26.08", Mode.CHECKPOINT_LOAD, {"--load_dir=/scratch/saved"}),
        (
            "26.02",
            Mode.PROFILE,
            {
                "profiling.use_nsys_profiler=true",
                "profiling.profile_step_start=10",
                "profiling.profile_step_end=12",
                "profiling.profile_ranks=[0,4]",
                "profiling.record_shapes=false",
            },
        ),
    ],
)
def test_what_a_mode_says_more(release: str, mode: Mode, further: set[str]) -> None:
    recipe = in_release(ROWS[0], release)
    assert recipe is not None
    fields = {"checkpoint_path": "/scratch/saved"} if mode is Mode.CHECKPOINT_LOAD else {}
    assert (
        set(bridge_command(run_of(recipe, mode, **fields))) - set(bridge_command(run_of(recipe))) == further
    )


def test_a_plan_by_name() -> None:
    runs = plan(PlanRequest(workload="qwen3-26.02", size="235b-a22b", gpu_type="h100")).runs
    (run,) = runs
    assert run.experiment == "pretrain_qwen3_235b-a22b_fp8_cs_gpus256_tp2_pp8_cp1_vp4_ep32_etp1_mbs1_gbs8192"
    assert (run.model_flops, run.recipe.image) == (None, "nvcr.io/nvidia/nemo:26.02")
    assert run.performance.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    require_trainable(runs)
    assert Run.model_validate_json(run.model_dump_json()) == run
    told = CliRunner().invoke(app, ["plan", "qwen3-26.02", "--gpu-type", "gb300"], catch_exceptions=False)
    assert "qwen3-26.02 30b-a3b (30b, 3b active parameters), fp8_mx on gb300, weak scaling" in told.stdout
    listed = CliRunner().invoke(app, ["recipes", "--workload", "nemotron3", "--format", "csv"])
    assert listed.exit_code == 0
    assert len(listed.stdout.splitlines()) == 1 + len(list(load_workload("nemotron3").recipes()))


@pytest.mark.parametrize("option", ["cuda_graphs", "tp_comm_overlap"])
def test_what_the_recipe_sets_cannot_be_asked_for(option: str) -> None:
    with pytest.raises(UserError) as refused:
        plan(PlanRequest.model_validate({"workload": GPT_OSS, "gpu_type": "h100", option: True}))
    assert str(refused.value) == (
        f"{option} of {GPT_OSS} 120b on h100 is set by its recipe in Megatron-Bridge: leave it out."
    )


def test_what_is_known_of_recipes_is_what_upstreams_source_has() -> None:
    """By release these are the recipes, tokens of a sample, stated parameters, and files from the hub."""
    for release, recipes in json.loads((DATA / "recipes.json").read_text()).items():
        ours = {
            f"{family} {name}": (
                *(list(known.seq_length), stated_parameters(known)),
                *([one] if one else [] for one in (known.configuration, known.tokenizer)),
            )
            for family, names in bridge_release(f"nemo:{release}").recipes.items()
            for name, known in names.items()
        }
        upstreams = {
            name: (
                *(recorded["seq_length"], stated(recorded["stated"])),
                *(recorded["configuration"], recorded["tokenizer"]),
            )
            for name, recorded in recipes.items()
        }
        assert ours == upstreams, release


def stated(text: str | None) -> Parameters | None:
    """Return `30b-a3b` as numbers of parameters; None for None."""
    if text is None:
        return None
    total, _, active = text.replace("b", "").partition("-a")
    return Parameters(int(total) * 10**9, int(active) * 10**9 if active else None)


def test_a_recipe_that_another_image_has_not_is_not_started() -> None:
    recipe = next(row for row in ROWS if row.size == "super").model_copy(update={"image": "nemo:26.02"})
    with pytest.raises(UserError) as refused:
        bridge_command(run_of(recipe))
    assert str(refused.value) == (
        "nemotron3-26.04 super cannot be started: unknown recipe 'nemotron_3_super' of Megatron-Bridge in "
        "nemo:26.02, family nemotronh: did you mean 'nemotronh_56b'? Valid are: nemotronh_56b; add "
        "one that your own image pre-trains to config/megatron_bridge.yaml."
    )


def test_an_image_of_no_known_release_starts_nothing() -> None:
    recipe = ROWS[0].model_copy(update={"image": "registry.example/team/nemo:nightly"})
    with pytest.raises(UserError) as refused:
        require_trainable([run_of(recipe)])
    assert "lists image registry.example/team/nemo:nightly under no release" in str(refused.value)
    assert "choose one of nemo:25.11, nemo:25.11.01, nemo:26.02" in str(refused.value)


IN_SIZE = "sizes.120b"
IMAGE, OLDER = "nvcr.io/nvidia/nemo:26.02", "nvcr.io/nvidia/nemo:25.11"
THE_MODEL = "    model: {architecture: "
THE_ROWS = "      - gpu_types: [gb300, gb200, b300, b200]"
THE_ROWS_OF_H100 = "      - gpu_types: [h100]"
OF_YOURS = "add one that your own image pre-trains to config/megatron_bridge.yaml."
MISTAKES = {
    "another model's recipe": (
        ("family: gpt_oss, recipe: gpt_oss_120b, variant: v2", "family: qwen, recipe: qwen3_30b_a3b"),
        (
            THE_MODEL,
            f"{IN_SIZE}.model: qwen3_30b_a3b has 30 billion parameters, and the name of its size states 120: "
            "give the recipe of that very model, or name the size by what it has.",
        ),
    ),
    "a recipe of a later release": (
        ("recipe: gpt_oss_120b", "recipe: gpt_oss_20b"),
        (
            THE_MODEL,
            f"{IN_SIZE}.model.recipe: unknown recipe 'gpt_oss_20b' of Megatron-Bridge in {IMAGE}, family "
            f"gpt_oss: did you mean 'gpt_oss_120b'? Valid are: gpt_oss_120b; {OF_YOURS}",
        ),
    ),
    "samples of another length": (
        ("seq_length: 4096", "seq_length: 8192"),
        (
            THE_MODEL,
            f"{IN_SIZE}.model.seq_length: gpt_oss_120b in {IMAGE} has samples of 4096 tokens, and not of "
            "8192.",
        ),
    ),
    "a formula that counts": (
        ("flops_formula: megatron-bridge", "flops_formula: llama3.1-25.04"),
        (
            "flops_formula: ",
            "flops_formula: formula 'llama3.1-25.04' needs a model's sizes, which the name of a "
            "Megatron-Bridge recipe does not give (120b): formulas that fit are megatron-bridge.",
        ),
    ),
    "a GPU type that the release has not": (
        (f'b300: {{gpus_per_node: 8, image: "{IMAGE}"}}', f'b300: {{gpus_per_node: 8, image: "{OLDER}"}}'),
        (
            THE_ROWS,
            f"{IN_SIZE}.configurations.0: {OLDER} has recipes for h100, b200, gb200, gb300, and not for "
            "b300.",
        ),
    ),
    "a variant in a release without": (
        (f'h100: {{gpus_per_node: 8, image: "{IMAGE}"}}', f'h100: {{gpus_per_node: 8, image: "{OLDER}"}}'),
        (
            THE_ROWS_OF_H100,
            f"{IN_SIZE}.configurations.1: {OLDER} starts no recipe with variant v2: leave variant out.",
        ),
    ),
    "settings of steptime's own trainer": (
        (
            "    - source: plugin\n",
            "    - {source: plugin, trainer: {gc_interval: 100}}\n    - source: plugin\n",
        ),
        (
            "    - {source: plugin, trainer",
            "performance.rules.5.trainer: is for steptime's own trainer, which does not train all "
            "sizes of this rule: leave it out, or limit the rule to sizes that are not recipes of "
            "Megatron-Bridge.",
        ),
    ),
    "arguments of upstream's script that are set already": (
        (
            "    - source: plugin\n",
            "    - {source: plugin, arguments: {num_gpus: '8'}}\n    - source: plugin\n",
        ),
        (
            "    - {source: plugin, arguments",
            "performance.rules.5.arguments.num_gpus: is already set by steptime for each run: leave it out.",
        ),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_with_file_line_and_field(config: Path, mistake: str) -> None:
    (old, new), (line, sentence) = MISTAKES[mistake]
    path = config / "workloads" / f"{GPT_OSS}.yaml"
    text = path.read_text()
    assert old in text
    changed = text.replace(old, new, 1)
    path.write_text(changed)
    with pytest.raises(UserError) as refused:
        load_workload(GPT_OSS)
    number = next(n for n, written in enumerate(changed.splitlines(), 1) if line in written)
    said = str(refused.value).split("\n")
    assert any(one.startswith(f"{path}, line {number}, {sentence}") for one in said), said


def test_a_broken_release_is_named_with_its_place(config: Path) -> None:
    path = config / "megatron_bridge.yaml"
    path.write_text(path.read_text().replace("--num_gpus={gpus}", "--num_gpus={gpu}", 1))
    with pytest.raises(UserError) as refused:
        load_workload(GPT_OSS)
    assert "'25.11'" not in str(refused.value)
    assert "unknown word 'gpu'" in str(refused.value)
    listed = CliRunner().invoke(app, ["recipes", "--format", "csv"])
    assert listed.exit_code == 1
