"""The estimate of a GPU's memory, and the refusal of what cannot fit."""

import pytest
from kept import assert_kept

from steptime.errors import UserError
from steptime.judging.expected_cost import Source, expected_cost
from steptime.recipes.memory import estimate_memory
from steptime.recipes.models import Parallelism, TrainerSettings
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload


def planned(**options):
    return plan(PlanRequest(**options)).runs[0]


@pytest.fixture
def impossible():
    """Return the options of Llama 3.1 405b with all its weights on each GPU."""
    size = {"workload": "llama3.1-25.04", "size": "405b", "dtype": "bf16", "gpu_type": "h100", "gpus": "512"}
    return size | {"tensor_parallel": 1, "pipeline_parallel": 1}


def test_what_cannot_fit_is_refused_unless_insisted_upon(impossible):
    with pytest.raises(UserError, match=r"alone take about 1,6\d\d GB of each h100, which has 80 GB"):
        planned(**impossible)
    insisted = planned(**impossible, ignore_memory=True)
    assert insisted.tuning


def test_sharded_weights_fit_where_whole_ones_do_not(impossible):
    run = planned(**impossible, ignore_memory=True)
    whole, sharded = (
        estimate_memory(run.recipe, run.performance.trainer.model_copy(update={"use_megatron_fsdp": shards}))
        for shards in (False, True)
    )
    assert whole is not None
    assert sharded is not None
    copies = run.recipe.parallelism.data * run.recipe.parallelism.context
    bytes_of_405b = sharded.states_gb * copies / 405.9
    assert 12 < bytes_of_405b < 19  # weights, gradients and optimizer states of a parameter, all once
    assert whole.states_gb > 100 * sharded.states_gb


def test_each_size_is_estimated_as_reviewed():
    others = TrainerSettings(use_megatron_fsdp=True, use_precision_aware_optimizer=True)
    told = []
    for name in list_workloads():
        largest = {(one.size, one.proxy): one for one, _ in load_workload(name).recipes() if not one.launcher}
        for recipe in largest.values():
            for settings, shown in (
                (TrainerSettings(), f"{name} {recipe.size} {recipe.dtype}"),
                (others, "  sharded"),
            ):
                if (estimate := estimate_memory(recipe, settings)) is not None:
                    told.append(f"{shown} {recipe.gpus} × {recipe.gpu_type}: {estimate.sentence}\n")
    assert_kept("shown/memory.txt", "".join(told))


def test_no_published_step_time_is_the_expected_cost_of_a_tuned_run(impossible):
    as_published = planned(**{**impossible, "tensor_parallel": None, "pipeline_parallel": None})
    tuned = planned(**impossible, ignore_memory=True)
    sources = [cost.source for cost in expected_cost([as_published, tuned]).each]
    assert sources == [Source.PUBLICATION, Source.NONE]


@pytest.mark.parametrize("name", list_workloads())
def test_no_published_row_is_refused(name):
    workload = load_workload(name)
    for recipe, _ in workload.recipes():
        cell = recipe.identity | {"gpus": str(recipe.gpus), "workload": name}
        plan(PlanRequest(**cell, proxy=recipe.proxy))


def test_weights_gradients_and_optimizer_states_by_hand():
    """Llama 3.1 405b, bf16 on 512 H100: 405.85e9 weights over tensor × pipeline, Adam over the rest, too."""
    run = planned(workload="llama3.1-25.04", size="405b", dtype="bf16", gpu_type="h100", gpus="512")
    ways = run.recipe.parallelism
    per_gpu = 405.85e9 / (ways.tensor * ways.pipeline)
    estimate = estimate_memory(run.recipe, run.performance.trainer)
    assert estimate is not None
    optimizer = 10 if run.performance.trainer.use_precision_aware_optimizer else 12
    by_hand = per_gpu * (4 + optimizer / (ways.data * ways.context)) / 1e9
    assert estimate.states_gb == pytest.approx(by_hand, rel=0.01)
    assert estimate.activations_gb is not None
    assert 0 < estimate.states_gb + estimate.activations_gb < estimate.gpu_gb


LAYERS = 32 * (18 * 4096 + 4 * 14336)
"""Bytes of a token in all layers of Llama 3.1 8b."""
WEIGHTS = 8_029_995_008


@pytest.mark.parametrize(
    ("ways", "batches", "dtype", "small", "states", "activations"),
    [
        # the output layer is on the first stage, too; two ranks share a sequence of 8,192 tokens
        (
            {"tensor": 1, "pipeline": 1, "context": 2, "data": 4},
            (1, 128),
            *("bf16", False, WEIGHTS * (4 + 12 / 8)),
            4096 * (LAYERS + 4 * (4096 + 128_256)),
        ),
        # four stages, each of two parts
        (
            {"tensor": 2, "pipeline": 4, "context": 1, "data": 1, "virtual_pipeline": 2},
            (2, 128),
            *("bf16", True, WEIGHTS / 8 * (4 + 10)),
            2 * 8192 * LAYERS / 2 * (1 + 3 / 8),
        ),
        # two micro batches do not fill four stages; weights stay in 8 bits
        *(
            (
                {"tensor": 1, "pipeline": 4, "context": 1, "data": 2},
                (1, 4),
                *(dtype, False, WEIGHTS / 4 * (3 + 12 / 2)),
                8192 * LAYERS / 2,
            )
            for dtype in ("fp8", "nvfp4")
        ),
    ],
)
def test_activations_by_hand(
    ways,
    batches,
    dtype,
    small,
    states,
    activations,
):
    run = planned(workload="llama3.1-25.04", size="8b", dtype="bf16", gpu_type="h100", gpus="8")
    changed = {"parallelism": Parallelism(**ways), "dtype": dtype}
    recipe = run.recipe.model_copy(
        update=changed | dict(zip(("micro_batch_size", "global_batch_size"), batches, strict=True))
    )
    settings = run.performance.trainer.model_copy(update={"use_precision_aware_optimizer": small})
    estimate = estimate_memory(recipe, settings)
    assert estimate is not None
    assert estimate.states_gb == pytest.approx(states / 1e9, rel=1e-3)
    assert estimate.activations_gb == pytest.approx(activations / 1e9)
    assert estimate.total_gb == pytest.approx((states + activations) / 1e9, rel=1e-3)
    recomputed = settings.model_copy(update={"recompute_granularity": "selective"})
    untold = estimate_memory(recipe, recomputed)
    assert untold is not None
    assert (untold.states_gb, untold.activations_gb, untold.total_gb) == (estimate.states_gb, None, None)


def test_nothing_is_estimated_on_the_cpu():
    run = planned(workload="llama3.1-25.04", gpus="1")
    assert estimate_memory(run.recipe, run.performance.trainer) is None
