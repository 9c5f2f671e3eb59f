"""All printed numbers of the documents are there, and a broken reference file is refused with its place."""

import os
from collections import Counter

import pytest
from printed_tables import configuration_rows, performance_rows

from steptime.errors import UserError
from steptime.measure.metrics import throughput
from steptime.recipes.flops import model_flops
from steptime.recipes.gpus import Peak
from steptime.recipes.published import list_references, load_reference, published_performance
from steptime.recipes.workloads import list_workloads, load_workload

RECIPES = [recipe for name in list_workloads() for recipe, _ in load_workload(name).recipes()]


def test_a_document_has_numbers_for_each_of_its_rows_or_for_none():
    """A document may also have numbers for one run, whose log it shows."""
    configured = Counter(row.recipe for row in configuration_rows())
    published = Counter(row.document for row in performance_rows())
    assert set(list_references()) == set(configured)
    assert {name for name, rows in configured.items() if published[name] not in (0, 1, rows)} == set()


def test_every_document_has_a_workload_and_every_number_a_recipe():
    printed = {
        name for name in list_workloads() if any(rule.printed for _, rule in load_workload(name).recipes())
    }
    assert set(list_references()) == printed
    published = [row for recipe in RECIPES if (row := published_performance(recipe))]
    assert len(published) == len(set(published)) == len(performance_rows())


def test_a_number_is_of_exactly_its_configuration():
    recipe = next(recipe for recipe in RECIPES if published_performance(recipe))
    other = {"size": "1b", "dtype": "fp32", "gpu_type": "a100", "global_batch_size": 9}
    parts = {"parallelism": {"data": 1000}, "model": {"seq_length": 4097}}
    other |= {name: getattr(recipe, name).model_copy(update=changed) for name, changed in parts.items()}
    for name, value in other.items():
        assert published_performance(recipe.model_copy(update={name: value})) is None, name


def test_stated_flops_are_the_formulas_rounded():
    recipes = {(recipe.workload, recipe.size): recipe for recipe in RECIPES}
    stated = {
        (name, size): flops
        for name in list_references()
        for size, flops in load_reference(name).stated_model_flops.items()
    }
    assert stated
    for of, flops in stated.items():
        by_formula = model_flops(recipes[of].model, recipes[of].flops_formula)
        assert by_formula == pytest.approx(flops, rel=1.5e-3), of


@pytest.fixture
def references(config):
    return config / "references"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("step_time_s: [15.119, ", "step_time_s: [", "step_time_s has 6 entries for 7 GPU counts"),
        ("step_time_s: [15.119,", "step_time_s: [fast,", r"line 16, tables.0.step_time_s.0: .* not \"fast\""),
    ],
)
def test_a_broken_table_is_refused(references, old, new, complaint):
    path = references / "nemotron-h-25.05.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError, match=complaint):
        performance_rows()


def test_a_table_has_the_lines_that_its_document_prints(references):
    """A table may have a single kind of numbers, but not none."""
    path = references / "nemotron-h-25.05.yaml"
    whole = path.read_text(encoding="utf-8")
    header = whole[: whole.index("tables:")] + "tables:\n"
    table = "size: 56b, dtype: fp8, gpu_type: h100, seq_length: 8192, gpus: [32], global_batch_size: [96]"
    path.write_text(f"{header}  - {{{table}, tflops_per_gpu: [480.5]}}\n", encoding="utf-8")
    recipe = next(
        candidate
        for candidate in RECIPES
        if (candidate.workload, candidate.size, candidate.gpus) == ("nemotron-h-25.05", "56b", 32)
    )
    row = published_performance(recipe)
    assert row is not None
    assert row.model_dump(exclude={"document", "size", "dtype", "gpu_type", "seq_length"}) == {
        **{"gpus": 32, "global_batch_size": 96, "tflops_per_gpu": 480.5},
        **dict.fromkeys(("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu")),
        **dict.fromkeys(("mfu_percent", "days_per_1t_tokens")),
    }
    rates = throughput(recipe, 15.0, peak=Peak(tflops=1979, source="given"))
    assert (rates.published_step_time_s, rates.step_time_over_published) == (None, None)

    path.write_text(f"{header}  - {{{table}}}\n", encoding="utf-8")
    os.utime(path, ns=(1, 1))
    with pytest.raises(
        UserError, match=r"tables.0: the table has no numbers: give one of step_time_s, tokens_per_s"
    ):
        load_reference("nemotron-h-25.05")
