"""Recipes of Megatron-Bridge by name: plans and commands, compared with upstream's parser and documents.

What upstream's code says is in tests/data/megatron_bridge, by tag (recorders/launches.py).
"""

import pytest
from launch_records import read_launches
from printed_tables import by_name, imported
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import UserError
from steptime.recipes.bridge_launch import bridge_command
from steptime.recipes.models import BRIDGE_WORDS, Mode, NamedRecipe, ProfileWindow, Run, Window
from steptime.recipes.parameters import Parameters, count_parameters
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.staging.checking import require_trainable
from tests.stand_ins.megatron_bridge.argument_parser import parser_of, recorded

GPT_OSS, QWEN = "gpt-oss-26.02", "qwen3-26.02"
BY_NAME = [name for name in list_workloads() if by_name(name) and not imported(name)]


ROWS = [recipe for name in BY_NAME for recipe, _ in load_workload(name).recipes()]
"""All rows of the documents."""


def run_of(recipe, mode=Mode.PERFORMANCE, **fields):
    profile = ProfileWindow(first_step=10, last_step=11, ranks=(0, 4)) if mode is Mode.PROFILE else None
    plain = {
        **{"experiment": "pretrain", "max_steps": 50, "window": Window(first=35, last=49)},
        **{"time_limit_s": 1800, "cluster": "local", "profile": profile},
    }
    return Run(recipe=recipe, mode=mode, **plain | fields)


def release_of(row):
    """Return the release of Megatron-Bridge in a row's image, such as `26.04` in nemo:26.04.01."""
    assert row.image is not None
    return row.image.rpartition(":")[2][:5]


RELEASES = tuple(recorded())


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("mode", list(Mode))
def test_the_parser_of_its_release_takes_our_arguments(release, mode):
    """Upstream's parser reads in them what was planned."""
    rows = [row for row in ROWS if release_of(row) == release]
    assert rows, "the release's launch is checked with some row"
    parser, old = parser_of(release), release == "25.11"
    for recipe in rows:
        model, spread = recipe.model, recipe.parallelism
        assert isinstance(model, NamedRecipe)
        fields = {"checkpoint_path": "/scratch/saved"} if mode is Mode.CHECKPOINT_LOAD else {}
        script, *said = bridge_command(run_of(recipe, mode, **fields))
        assert script.startswith("/opt/Megatron-Bridge/scripts/performance/")
        told, rest = parser.parse_known_args(said)
        assert all("=" in text and not text.startswith("-") for text in rest), rest
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
        sources = load_workload(recipe.workload).performance.sources.values()
        tag = LAUNCHED_AT.get(recipe.workload, recorded()[release]["tag"])
        assert any(f"Megatron-Bridge {tag}, scripts/performance/" in source for source in sources)


LAUNCHED_AT = {"qwen3-25.12": "4df8c97392bc9c3906739e658f203f6810008821"}
"""Where a workload's settings come from another commit than the tag of the release in its image."""


def row_of(release):
    return next(row for row in ROWS if release_of(row) == release)


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
def test_what_a_mode_says_more(release, mode, further):
    recipe = row_of(release)
    fields = {"checkpoint_path": "/scratch/saved"} if mode is Mode.CHECKPOINT_LOAD else {}
    assert (
        set(bridge_command(run_of(recipe, mode, **fields))) - set(bridge_command(run_of(recipe))) == further
    )


def test_a_plan_by_name():
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
def test_what_the_recipe_sets_cannot_be_asked_for(option):
    with pytest.raises(UserError) as refused:
        plan(PlanRequest.model_validate({"workload": GPT_OSS, "gpu_type": "h100", option: True}))
    assert str(refused.value) == (
        f"`{option}` of {GPT_OSS} 120b on h100 is set by its recipe in Megatron-Bridge: leave it out."
    )


def test_what_is_stated_of_recipes_is_what_upstreams_source_has():
    """These are the tokens of a sample, the parameters, and the files from the hub."""
    launches = read_launches("megatron_bridge/launches.json")
    for row in ROWS:
        model = row.model
        assert isinstance(model, NamedRecipe)
        upstream = launches[row.workload][f"{model.recipe} {row.gpu_type} {row.dtype} {row.gpus}"]
        assert model.seq_length == upstream["seq_length"], row.identity
        assert count_parameters(model) == stated(upstream["stated"]), row.identity
        files = {repository: [*names] for repository, names in row.hub_files.items()}
        assert files == upstream["hub"], row.identity


def stated(text):
    """Return `30b-a3b` as numbers of parameters; None for None."""
    if text is None:
        return None
    total, _, active = text.replace("b", "").partition("-a")
    return Parameters(int(total) * 10**9, int(active) * 10**9 if active else None)


NIGHTLY = "registry.example/team/nemo:nightly"
NOT_FOR_NIGHTLY = (
    f"its launch is for nvcr.io/nvidia/nemo:26.04, nvcr.io/nvidia/nemo:26.04.01, and not for {NIGHTLY}: if "
    "the scripts there take the same arguments, add the image to launch.commits in the workload's file"
)


def test_an_image_that_the_launch_is_not_for_starts_nothing():
    row = next(row for row in ROWS if row.size == "super" and row.workload == "nemotron3-26.04")
    run = run_of(row.model_copy(update={"image": NIGHTLY}))
    for start in (bridge_command, lambda run: require_trainable([run])):
        with pytest.raises(UserError) as refused:
            start(run)
        assert str(refused.value) == f"nemotron3-26.04 super cannot be started: {NOT_FOR_NIGHTLY}."


def test_the_same_image_of_another_registry_is_started_the_same():
    for row in ROWS:
        assert row.image is not None
        image = f"registry.example/{row.image.rpartition('/')[2]}@sha256:{'0' * 64}"
        mirrored = row.model_copy(update={"image": image})
        assert bridge_command(run_of(mirrored)) == bridge_command(run_of(row))


IN_SIZE = "sizes.120b"
IMAGE, NEWER = "nvcr.io/nvidia/nemo:26.02", "nvcr.io/nvidia/nemo:26.12"
THE_MODEL = "    model:"
THE_ROWS_OF_H100 = "      - gpu_types: [h100]"
MISTAKES = {
    "another model's parameters": (
        ("parameters: 120", "parameters: 30"),
        (
            THE_MODEL,
            f"{IN_SIZE}.model: this model has 30 billion parameters, and the name of its size states 120: "
            "give the sizes of that very model, or name the size by what it has.",
        ),
    ),
    "an argument with a word that nothing gives": (
        ("--num_gpus={gpus}", "--num_gpus={gpu}"),
        (
            "- --num_gpus={gpu}",
            f"{IN_SIZE}.model.launch.arguments.3: '--num_gpus={{gpu}}' has a word that nothing gives: there "
            f"are {', '.join(f'{{{word}}}' for word in BRIDGE_WORDS)}; write {{{{ for a brace.",
        ),
    ),
    "an argument with a word that has no name": (
        ("--num_gpus={gpus}", "--num_gpus={}"),
        (
            "- --num_gpus={}",
            f"{IN_SIZE}.model.launch.arguments.3: '--num_gpus={{}}' has a word that nothing gives",
        ),
    ),
    "a script in the image that is a path in Megatron-Bridge": (
        ("script: /opt/Megatron-Bridge/", "script: "),
        (
            "        commits: ",
            f"{IN_SIZE}.model.launch.commits.{IMAGE}: is null, so script must be a path from / on in the "
            "image.",
        ),
    ),
    "a repository without its owner": (
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        (
            "      hub: ",
            f'{IN_SIZE}.model.hub.gpt-oss-120b: has to be OWNER/NAME, not "gpt-oss-120b".',
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
    "an image that the launch is not for": (
        (f'h100: {{gpus_per_node: 8, image: "{IMAGE}"}}', f'h100: {{gpus_per_node: 8, image: "{NEWER}"}}'),
        (
            THE_ROWS_OF_H100,
            f"{IN_SIZE}.configurations.1: its launch is for {IMAGE}, {IMAGE}.01, and not for {NEWER}: if the "
            "scripts there take the same arguments, add the image to launch.commits in the workload's file.",
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
def test_a_mistake_is_a_sentence_with_file_line_and_field(config, mistake):
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
    assert any(mistake.startswith(f"{path}, line {number}, {sentence}") for mistake in said), said
