"""What a release changed, as `steptime recipes diff` lists it."""

import pytest

from steptime.errors import UserError
from steptime.recipes.release_diff import release_differences
from steptime.recipes.workloads import load_workload


def changes(old, new):
    rows = release_differences(load_workload(old), load_workload(new))
    return {(row["cells"], row["setting"]): (row["old"], row["new"]) for row in rows}


def test_changes_are_named_with_the_cells_that_they_concern():
    changed = changes("gpt-oss-26.02", "gpt-oss-26.08")
    assert changed["all", "image"] == ("nvcr.io/nvidia/nemo:26.02", "nvcr.io/nvidia/nemo:26.06.01")
    assert changed["b300 bf16: 64; b200 bf16: 64", "expert parallel"] == (64, 8)
    assert changed["b300 bf16: 64", "variable NVLINK_DOMAIN_SIZE"] == (None, "8")
    assert changed["all", "argument --task"] == (None, "pretrain")
    assert ("all", "argument --config_variant") not in changed, "its text changed and its value did not"
    (cells,) = [cells for cells, setting in changed if setting == "cell"]
    assert "h100 bf16: 128, 256, 512" in cells
    assert changed[cells, "cell"] == (None, "yes")


def test_the_other_direction_swaps_the_values():
    forth, back = changes("kimi-k2-26.06", "kimi-k2-26.08"), changes("kimi-k2-26.08", "kimi-k2-26.06")
    assert forth["all", "micro batch"] == (2, 1)
    assert {change: (new, old) for change, (old, new) in back.items()} == forth


def test_a_recipe_whose_name_had_no_family_is_compared():
    assert changes("qwen3-25.12", "qwen3-26.02")["gb300 fp8_mx: 256", "pipeline parallel"] == (1, 4)


def test_a_workload_does_not_differ_from_itself():
    assert changes("llama3.1-25.04", "llama3.1-25.04") == {}


def test_workloads_without_a_common_run_are_refused():
    with pytest.raises(UserError, match=r"kimi-k2-26.06 and gpt-oss-26.08 have no run in common"):
        changes("kimi-k2-26.06", "gpt-oss-26.08")
