"""The recipes that shipped workloads start by name: Megatron-Bridge's own functions, tiny and on the CPU."""

import math
from collections import defaultdict

import pytest

from steptime.logs.reader import read_log
from steptime.recipes.bridge_launch import bridge_command
from steptime.recipes.models import NamedRecipe
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload

from .jobs import ROOT

PROGRAM = ROOT / "tests" / "trainer" / "programs" / "named_recipe.py"
STEPS = 3
VOCABULARY = 512
NEWER = {"deepseek_v4_flash", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"}
"""Recipes that Megatron-Bridge 0.3.1 does not have; docs/reference/trainer.md names them."""

LARGER = ("gpt_oss_120b", "kimi_k2", "llama31_405b", "llama3_70b", "qwen3_235b_a22b")
"""Recipes like a smaller one of the same family, which `make test` builds."""


def overrides_by_recipe():
    """Return the overrides of Hydra that shipped workloads pass to each recipe."""
    overrides = defaultdict(set)
    for workload in list_workloads():
        for size, described in load_workload(workload).sizes.items():
            if not isinstance(model := described.model, NamedRecipe):
                continue
            row = described.configurations[0]
            request = PlanRequest(
                **{"workload": workload, "size": size, "gpu_type": row.gpu_types[0], "dtype": row.dtypes[0]},
                gpus=str(row.gpus[0]),
            )
            _script, *arguments = bridge_command(plan(request).runs[0])
            # Release 25.12 leaves the family out.
            name = f"{model.family}_{model.recipe}" if model.recipe[0].isdigit() else model.recipe
            overrides[name] |= {argument for argument in arguments if not argument.startswith("-")}
    return overrides


OVERRIDES = overrides_by_recipe()


@pytest.mark.trainer
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "recipe",
    [
        *sorted(OVERRIDES.keys() - set(LARGER)),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in LARGER),
    ],
)
def test_a_recipe_is_built_with_the_overrides_of_its_workloads_and_trains(warm_bridge, recipe, tmp_path):
    arguments = [f"{recipe}_pretrain_config", str(STEPS), *sorted(OVERRIDES[recipe])]
    trained = warm_bridge.run(str(PROGRAM), arguments, folder=tmp_path)
    if f"has no attribute '{recipe}_pretrain_config'" in trained.log:
        assert recipe in NEWER
        return
    assert trained.exit_code == 0, trained.log
    steps = read_log(tmp_path / "log.out", max_steps=STEPS).steps
    assert len(steps) == STEPS
    assert steps[0].loss == pytest.approx(math.log(VOCABULARY), abs=1)
