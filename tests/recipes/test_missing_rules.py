"""What a plan says about a model without performance rules."""

from pathlib import Path

import pytest
import yaml
from printed_tables import config_with

from steptime.recipes.nearest_rules import missing_rules
from steptime.recipes.planning import PlanRequest, plan

MIXTURES = Path(__file__).parents[1] / "data" / "mixtures"


@pytest.fixture
def workloads(config_folder, monkeypatch):
    """Return the folder of the shipped workloads, with mixtures of experts."""
    folder = config_with(MIXTURES, config_folder)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(folder))
    return folder / "workloads"


def without_rules(workloads, name, *, called="acme", and_remove_it=False):
    """Return what a plan says about a copy of a workload that has no block `performance`."""
    release = name.rpartition("-")[2]
    content = yaml.safe_load((workloads / f"{name}.yaml").read_text())
    del content["performance"]
    for size in content["sizes"].values():
        size.pop("proxies", None)
        # FP8 needs a rule that says how it is scaled.
        dtypes = [
            (rule, [dtype for dtype in rule["dtypes"] if dtype != "fp8"]) for rule in size["configurations"]
        ]
        size["configurations"] = [rule | {"dtypes": left} for rule, left in dtypes if left]
    content["defaults"]["dtype"] = "bf16"
    content["sizes"] = {name: size for name, size in content["sizes"].items() if size["configurations"]}
    if and_remove_it:
        (workloads / f"{name}.yaml").unlink()
    content |= {"workload": f"{called}-{release}", "title": "Acme"}
    (workloads / f"{called}-{release}.yaml").write_text(yaml.safe_dump(content))
    return missing_rules(plan(PlanRequest(workload=f"{called}-{release}", gpu_type="h100")))


def test_a_dense_model_without_rules_is_told_what_the_nearest_one_sets(workloads):
    [sentence] = without_rules(workloads, "nemotron4-25.04", called="nemotron4")
    assert sentence.startswith(
        "nemotron4-25.04 has no performance rules for h100: overlaps of communication, the "
    )
    assert "The nearest model with rules, llama3.1-25.04 8b, sets " in sentence, "and not a proxy"
    assert "fp8_recipe" not in sentence, "but what rules set for its own dtype"
    for name in ("overlap_grad_reduce", "environment.CUDA_DEVICE_MAX_CONNECTIONS"):
        assert name in sentence


def test_a_mixture_is_told_what_another_mixture_sets(workloads):
    [sentence] = without_rules(workloads, "deepseek-v3-25.08")
    assert "The nearest model with rules, deepseek-v3-25.08 671b, sets fp8_recipe" in sentence or (
        "deepseek-v3-25.08 671b, sets recompute_granularity" in sentence
    )


def test_a_mixture_without_another_is_told_where_rules_for_mixtures_are(workloads):
    """As with the shipped files: those of a dense model would not help it."""
    (workloads / "grok1-25.08.yaml").unlink()
    [sentence] = without_rules(workloads, "deepseek-v3-25.08", and_remove_it=True)
    assert sentence.endswith(
        "and variables are off. Rules to begin with are in docs/reference/workloads.md, "
        '"A mixture of experts".'
    )
    page = Path(__file__).parents[2] / "docs" / "reference" / "workloads.md"
    assert "trainer:" in page.read_text().partition("\n## A mixture of experts\n")[2].partition("\n## ")[0]


def test_nothing_is_said_about_a_model_with_rules(workloads):
    assert missing_rules(plan(PlanRequest(workload="llama3.1-25.04", gpu_type="h100"))) == []


def test_nothing_is_said_about_the_cpu(workloads):
    assert missing_rules(plan(PlanRequest(workload="llama3.1-25.04", gpus="1"))) == []


def test_nothing_is_said_about_what_other_programs_run(workloads):
    assert missing_rules(plan(PlanRequest(workload="nccl", gpu_type="h100"))) == []
