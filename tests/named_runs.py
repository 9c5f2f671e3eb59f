"""Planned runs of recipes by name, small enough for a stand-in for Megatron-Bridge's script."""

from staged import staged_files

from steptime.recipes.models import Mode, NamedRecipe, Parallelism, Recipe, Run, Window
from steptime.recipes.workloads import load_workload

SAVED_AT = 6
IN_IMAGE = staged_files(trainer_path="/work/trainer", image_path="/images/nemo")


_BY_RELEASE = {
    "25.11": "qwen3-25.12",
    "26.02": "gpt-oss-26.02",
    "26.04": "llama3-26.04",
    "26.06": "llama3.1-26.06",
    "26.08": "nemotron3-26.08",
}
"""A shipped workload for each release of Megatron-Bridge."""


def launch_of(release):
    """Return how a shipped workload starts the recipes of a release of Megatron-Bridge."""
    model = next(iter(load_workload(_BY_RELEASE[release]).sizes.values())).model
    assert isinstance(model, NamedRecipe)
    return model.launch


def run_of(release="26.02", mode=Mode.PERFORMANCE, **fields):
    first = SAVED_AT if mode is Mode.CHECKPOINT_LOAD else 0
    steps = {"first_step": first, "max_steps": first + 1 if first else SAVED_AT}
    recipe = Recipe(
        workload=f"gpt-oss-{release}",
        size="120b",
        dtype="bf16",
        gpu_type="h100",
        scaling="weak",
        proxy=False,
        model=NamedRecipe(
            architecture="megatron_bridge",
            family="gpt_oss",
            recipe="120b" if release == "25.11" else "gpt_oss_120b",
            seq_length=4096,
            launch=launch_of(release),
        ),
        parallelism=Parallelism(tensor=1, pipeline=4, context=1, expert=8, expert_tensor=1, data=16),
        micro_batch_size=1,
        global_batch_size=1280,
        gpus_per_node=8,
        image=f"registry.example/nemo:{release}",
        flops_formula="megatron-bridge",
    )
    plain = {
        "experiment": "pretrain_gpt_oss",
        "recipe": recipe,
        "mode": mode,
        "window": Window(first=first or 3, last=steps["max_steps"] - 1),
        "time_limit_s": 600,
        "cluster": "local",
        **steps,
    }
    return Run.model_validate(plain | fields)
