"""Runs that the trainer cannot train are refused before anything is staged."""

import pytest

from steptime.errors import UserError
from steptime.recipes.models import (
    Mode,
    MoeShape,
    Parallelism,
    Performance,
    TrainerSettings,
)
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.checking import require_trainable

EXPERTS_APART = Parallelism(tensor=1, pipeline=1, context=1, data=2, expert_tensor=2)
FORMATS = "with the backend nemo it has fp32, bf16, fp8, FP8 with delayed or current scaling, and not"


def _as_gpt(shape):
    return shape.model_copy(update={"architecture": "gpt", "gated_linear_unit": True})


def _mixture_on_cpu(recipe, **replaced):
    experts = MoeShape(num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=512)
    model = _as_gpt(recipe.model).model_copy(update={"moe": experts})
    return recipe.model_copy(
        update={"model": model, "gpu_type": "cpu", "image": None, "backend": "megatron_bridge"} | replaced
    )


def _on_bridge(run, **settings):
    """Return what makes a run one of Megatron-Bridge with these settings."""
    model, image = _as_gpt(run.recipe.model), "nvcr.io/nvidia/nemo:26.02"
    recipe = run.recipe.model_copy(update={"backend": "megatron_bridge", "model": model, "image": image})
    return {"recipe": recipe, "performance": Performance(trainer=TrainerSettings(**settings))}


UNTRAINABLE = {
    "family": (
        lambda run: {"recipe": run.recipe.model_copy(update={"model": _as_gpt(run.recipe.model)})},
        "the backend nemo has no gpt models: choose the backend megatron_bridge.",
    ),
    "tensor parallel experts on the CPU": (
        lambda run: {"recipe": _mixture_on_cpu(run.recipe)},
        "a mixture of experts with tensor parallel 8 needs sequence parallelism, which the CPU does not "
        "support: choose tensor parallel 1.",
    ),
    "experts that alone are tensor parallel on the CPU": (
        lambda run: {"recipe": _mixture_on_cpu(run.recipe, parallelism=EXPERTS_APART)},
        "a mixture of experts with tensor parallel 2 needs sequence parallelism, which the CPU does not "
        "support: choose tensor parallel 1.",
    ),
    "dtype": (
        lambda run: {
            "recipe": run.recipe.model_copy(update={"dtype": "nvfp4"}),
            "performance": Performance(trainer=TrainerSettings(fp8_recipe="nvfp4")),
        },
        f"{FORMATS} nvfp4 (nvfp4 scaling).",
    ),
    "scaling": (
        lambda run: {
            "recipe": run.recipe.model_copy(update={"dtype": "fp8"}),
            "performance": Performance(trainer=TrainerSettings(fp8_recipe="blockwise")),
        },
        f"{FORMATS} fp8 (blockwise scaling).",
    ),
    "recomputation": (
        lambda run: {"performance": Performance(trainer=TrainerSettings(recompute_granularity="selective"))},
        "the backend nemo has no recompute_granularity: leave it out, or choose the backend megatron_bridge.",
    ),
    "a window": (
        lambda run: {
            "recipe": run.recipe.model_copy(
                update={"model": run.recipe.model.model_copy(update={"window_size": 128})}
            )
        },
        "the backend nemo has no window_size: leave it out, or choose the backend megatron_bridge.",
    ),
    "a dispatcher without experts": (
        lambda run: _on_bridge(run, moe_flex_dispatcher_backend="deepep"),
        "moe_flex_dispatcher_backend is for mixtures of experts, and this model is none: leave it out.",
    ),
    "FSDP with a setting of its own kind": (
        lambda run: _on_bridge(run, use_megatron_fsdp=True, average_in_collective=True),
        "use_megatron_fsdp does not go with average_in_collective: leave one of them out.",
    ),
    "FSDP with a checkpoint": (
        lambda run: _on_bridge(run, use_megatron_fsdp=True) | {"mode": Mode.CHECKPOINT_SAVE},
        "use_megatron_fsdp does not go with mode: checkpoint_save: leave one of them out.",
    ),
}
"""By kind: what is changed in a run, and why that cannot be trained."""


@pytest.mark.parametrize("kind", UNTRAINABLE)
def test_what_the_trainer_does_not_do_is_refused_in_one_sentence(kind):
    changes, said = UNTRAINABLE[kind]
    run = planned("nvcr.io/nvidia/nemo:25.02.01")[0]
    with pytest.raises(UserError) as refused:
        require_trainable([run.model_copy(update=changes(run))])
    assert str(refused.value) == (
        "steptime can plan nemotron4-25.04 340b and measure logs of it, but its trainer cannot train it yet: "
        f"{said}"
    )


NEMO_1 = "nvcr.io/nvidia/nemo:24.09"


def planned(image, **options):
    """Return the runs of a plan in that image."""
    request = {"workload": "nemotron4", "size": "340b", "gpu_type": "h100", "gpus": "512", **options}
    return tuple(
        run.model_copy(update={"recipe": run.recipe.model_copy(update={"image": image})})
        for run in plan(PlanRequest.model_validate(request)).all_runs
    )


@pytest.mark.parametrize("image", [NEMO_1, "nvcr.io/nvidia/nemo:25.02.01", "team/nemo-on-pytorch:2", None])
def test_nemotron4_is_trained_in_any_image(image):
    require_trainable(planned(image))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"workload": "llama3.1", "size": "70b"},
            r"llama3.1-25.04 70b cannot be trained in image \S+/nemo:24\.09",
        ),
        (
            {"load_checkpoint": "/checkpoints/340b"},
            r"nemotron4-25.04 340b cannot save or load checkpoints in image \S+/nemo:24\.09",
        ),
    ],
)
def test_nemo_1_is_asked_for_nothing_else(fields, message):
    with pytest.raises(UserError, match=message):
        require_trainable(planned(f"registry.example/{NEMO_1}", **fields))


def test_sizes_that_the_trainer_refuses_are_refused_before_anything_is_staged():
    run = planned("nvcr.io/nvidia/nemo:25.02.01")[0]
    model = run.recipe.model.model_copy(update={"vocab_size": 256_001})
    with pytest.raises(
        UserError,
        match=r"plan nemotron4-25.04 340b .*: vocab_size 256001 cannot be divided by \w+ parallel 8",
    ):
        require_trainable([run.model_copy(update={"recipe": run.recipe.model_copy(update={"model": model})})])
