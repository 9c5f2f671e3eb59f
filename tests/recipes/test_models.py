"""The models of `recipes`: what each says where nothing is said, and which values do not go together."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from steptime.recipes.models import (
    HybridShape,
    Mode,
    ModelShape,
    Parallelism,
    Performance,
    ProfileWindow,
    Recipe,
    Run,
    TrainerSettings,
    Window,
)
from steptime.recipes.planning import parse_request, plan
from steptime.recipes.workloads import load_workload

RUN = plan(parse_request({"workload": "llama3.1", "gpus": "2"})).runs[0]
HYBRID = load_workload("nemotron-h").sizes["56b"].model


def refusal(model: BaseModel, **changed: Any) -> str:
    """Why a model cannot be with these values; empty where it can."""
    try:
        type(model).model_validate(model.model_dump() | changed)
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return ""


def test_a_trainer_that_is_told_nothing_has_everything_off() -> None:
    """As a plain run of NeMo has it."""
    on = {
        name: value
        for name, value in TrainerSettings().model_dump().items()
        if value not in (None, False, "native")
    }
    assert not on
    assert Performance().model_dump(exclude={"trainer"}) == {
        "environment": {},
        "ranks_per_numa_node": None,
        "priority_cores": False,
        "vboost": False,
        "arguments": {},
    }


def test_a_run_that_is_told_nothing_is_the_first_from_step_0() -> None:
    required = {name for name, field in Run.model_fields.items() if field.is_required()}
    bare = Run.model_validate(RUN.model_dump(include=required))
    told = {name: value for name, value in bare.model_dump().items() if name not in required}
    assert told.pop("performance") == Performance().model_dump()
    assert {name: value for name, value in told.items() if value is not None} == {
        "schema_version": 1,
        "first_step": 0,
        "repeat": 1,
        "seed": 1234,
        "tuning": "",
        "for_judging": True,
        "environment": {},
        "cluster_options": {},
    }


def test_one_way_of_spreading_is_given_and_the_others_are_one() -> None:
    assert Parallelism(data=3).model_dump() == {
        **{"tensor": 1, "pipeline": 1, "context": 1, "virtual_pipeline": None},
        **{
            "first_stage_layers": None,
            "last_stage_layers": None,
            "expert": None,
            "expert_tensor": None,
            "data": 3,
        },
    }
    assert Parallelism(tensor=2, pipeline=3, context=5, data=7, virtual_pipeline=11).world_size == 210


IMPOSSIBLE: Mapping[str, tuple[BaseModel, dict[str, Any], str]] = {
    "a window that ends before it begins": (Window(first=1, last=1), {"last": 0}, "window 1:0 ends before"),
    "a window of negative steps": (Window(first=0, last=0), {"first": -1}, "greater than or equal to 0"),
    "a window to a negative step": (Window(first=0, last=0), {"last": -1}, "greater than or equal to 0"),
    "a profile without ranks": (
        ProfileWindow(first_step=0, last_step=1, ranks=(0,)),
        {"ranks": ()},
        "at least 1",
    ),
    "a profile of no step": (
        ProfileWindow(first_step=0, last_step=1, ranks=(0,)),
        {"last_step": 0},
        "than 0",
    ),
    "a profile of negative steps": (
        ProfileWindow(first_step=0, last_step=1, ranks=(0,)),
        {"first_step": -1},
        "greater than or equal to 0",
    ),
    "a run from a negative step": (RUN, {"first_step": -1}, "greater than or equal to 0"),
    "a run of no steps": (RUN, {"max_steps": 0}, "greater than 0"),
    "a run of no time": (RUN, {"time_limit_s": 0}, "greater than 0"),
    "a run's repeat 0": (RUN, {"repeat": 0}, "greater than 0"),
    "another schema": (RUN, {"schema_version": 2}, "should be 1"),
    "batches that are no micro batches": (
        RUN.recipe,
        {"global_batch_size": 15},
        "global batch size 15 is not a multiple of micro batch size 1 × data parallel 2 = 2",
    ),
    "a family that there is not": (RUN.recipe.model, {"architecture": "lama"}, "did you mean 'llama'"),
    "hybrid sizes of a plain model": (
        RUN.recipe.model,
        {"hybrid": HYBRID.hybrid},
        "llama models have no hybrid sizes: leave hybrid out",
    ),
    "a hybrid model without its sizes": (HYBRID, {"hybrid": None}, "models have hybrid sizes: give them"),
    "hybrid layers that do not add up": (HYBRID, {"num_layers": 1}, "hybrid layers are not 1"),
}


def test_what_does_not_go_together_is_refused() -> None:
    wrong = {
        name: (said, complaint)
        for name, (model, changed, complaint) in IMPOSSIBLE.items()
        if complaint not in (said := refusal(model, **changed)) or refusal(model)
    }
    assert not wrong


NO_NUMBERS = {
    "architecture",
    "hybrid",
    "moe",
    "mla",
    "nemo",
    "gated_linear_unit",
    "share_embeddings_and_output_weights",
}
"""Of the fields of a `ModelShape`."""


def test_every_size_is_a_positive_number() -> None:
    assert HYBRID.hybrid is not None
    sizes = [(HYBRID, name) for name in ModelShape.model_fields if name not in NO_NUMBERS]
    sizes += [(HYBRID.hybrid, name) for name in HybridShape.model_fields if name != "pattern"]
    sizes += [(RUN.recipe.parallelism, name) for name in Parallelism.model_fields]
    sizes += [(RUN.recipe, name) for name in ("micro_batch_size", "global_batch_size", "gpus_per_node")]
    taken = [name for model, name in sizes if "greater than 0" not in refusal(model, **{name: 0})]
    assert not taken


def test_a_pattern_counts_the_layers_of_each_kind() -> None:
    assert HYBRID.hybrid is not None
    counts = {"num_attention_layers": 1, "num_mlp_layers": 2, "num_mamba_layers": 3}
    assert refusal(HYBRID.hybrid, pattern="M-M-M*", **counts) == ""
    assert refusal(HYBRID.hybrid, pattern=None, **counts) == ""
    for pattern in ("M-M-M", "M-M-M*M", "M-M-M**", "M-M-M*-", "M-M-M*x", ""):
        assert "the pattern's layers are" in refusal(HYBRID.hybrid, pattern=pattern, **counts), pattern


LABELS: Mapping[str, Callable[[Run], Run]] = {
    "tiny·fp32·2": lambda run: run,
    "tiny·fp32·2·repeat 2": lambda run: run.model_copy(update={"repeat": 2}),
    "tiny·fp32·2·checkpoint save": lambda run: run.model_copy(update={"mode": Mode.CHECKPOINT_SAVE}),
    "tiny·fp32·2·nccl trace·repeat 3": lambda run: run.model_copy(
        update={"mode": Mode.NCCL_TRACE, "repeat": 3}
    ),
}


def test_what_people_call_a_run() -> None:
    for label, changed in LABELS.items():
        assert changed(RUN).label == label


def test_micro_batches_of_a_rank() -> None:
    recipe = RUN.recipe.model_copy(
        update={
            "global_batch_size": 48,
            "micro_batch_size": 2,
            "parallelism": Parallelism(tensor=2, data=4),
        }
    )
    assert (recipe.gradient_accumulation, recipe.gpus) == (6, 8)
    assert recipe.identity == {
        **{"workload": "llama3.1-25.04", "size": "tiny", "dtype": "fp32", "gpu_type": "cpu"},
        **{"scaling": "weak", "gpus": 8},
    }
    assert Recipe.model_fields["step_log"].default == "lines"


@pytest.mark.parametrize(
    "content",
    [{"recipe": None}, {"recipe": "x"}, [], {"performance": {}}],
)
def test_what_is_no_run_is_refused_by_its_fields(content: Any) -> None:
    with pytest.raises(ValidationError):
        Run.model_validate(content)
