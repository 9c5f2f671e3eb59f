"""The variables of NVIDIA's documents: the page has them all, and a run's environment refuses them."""

import re
from pathlib import Path

import pytest

from steptime.cli.options import flag_of
from steptime.errors import UserError
from steptime.recipes.document_variables import INSTEAD, check_document_variables
from steptime.recipes.models import OwnProgram
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.request import option_fields, options_in_words

_TESTS = Path(__file__).parents[1]
_PAGE = (_TESTS.parent / "docs" / "reference" / "nvidia-scripts.md").read_text()
_LINES = (_TESTS / "data" / "documents" / "variables.txt").read_text().splitlines()
VARIABLES = [line for line in _LINES if not line.startswith("#")]
ROWS = [line.split(" | ") for line in _PAGE.splitlines() if line.startswith("| `")]
RECIPE = {"workload": "llama3.1", "size": "8b", "gpu_type": "h100", "gpus": "8"}


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_page_has_each_variable_of_the_documents(variable):
    assert [row for row in ROWS if f"`{variable}`" in row[0]]


def test_the_page_names_only_options_that_exist():
    flags = {
        flag
        for option in option_fields()
        for flag in (f"--{option.replace('_', '-')}", f"--no-{option.replace('_', '-')}", flag_of(option))
    }
    named = {flag for row in ROWS for flag in re.findall(r"`(--[a-z-]+)", row[1])}
    assert {"--profile", "--no-tp-comm-overlap", "--env"} <= named <= flags


@pytest.mark.parametrize("variable", INSTEAD)
def test_a_variable_without_effect_is_answered_with_what_does_it(variable):
    with pytest.raises(UserError, match=f"'{variable}' is a variable of NVIDIA's scripts") as refused:
        plan(PlanRequest(**RECIPE, environment={variable: "true"}))
    [row] = [row for row in ROWS if f"`{variable}`" in row[0]]
    options = re.findall("`([a-z_]+)`", str(refused.value))
    assert set(options) <= set(option_fields())
    assert [option for option in options if f"--{option.replace('_', '-')}" in " ".join(row)] == options
    assert options or any(where in row[1] for where in ("cluster's file", "connection"))


def test_a_program_of_ones_own_may_read_such_a_variable():
    [run] = plan(PlanRequest(**RECIPE)).runs
    program = OwnProgram.model_construct(command=("python", "train.py"))
    own = run.recipe.model_copy(update={"launcher": program})
    check_document_variables(["DTYPE"], [own])
    check_document_variables(["DTYPE"], [run.recipe, own])


def test_a_refusal_has_the_words_of_the_command():
    with (
        pytest.raises(UserError, match="has no effect here: use --profile\\."),
        options_in_words(flag_of),
    ):
        plan(PlanRequest(**RECIPE, environment={"ENABLE_PROFILE": "true"}))
