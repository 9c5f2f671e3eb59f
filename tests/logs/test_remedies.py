"""Every remedy that a failure's sentence names is an option or a variable that the command takes."""

import re
from pathlib import Path

import pytest
import yaml
from typer import Typer
from typer.testing import CliRunner

from steptime.cli.options import takes_plan_request
from steptime.logs import failure_causes
from steptime.recipes.environment import check_environment
from steptime.recipes.planning import PlanRequest, plan

_CAUSES = yaml.safe_load(Path(failure_causes.__file__).with_name("causes.yaml").read_text())["causes"]
_SENTENCES = sorted(
    {sentence for cause in _CAUSES for sentence in cause["forms"].values()}
    | {text for cause in _CAUSES for text in cause.get("advice", {}).values()}
)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?: [A-Z_]+=\w+)?")
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_REMEDIES = sorted({flag for sentence in _SENTENCES for flag in _FLAG.findall(sentence)})
_RECIPE = ("nemotron4-340b-25.12", "--gpu-type", "gb200", "--gpus", "128")


def test_remedies_are_looked_for():
    assert "--no-tp-comm-overlap" in _REMEDIES
    assert "--env HF_TOKEN_PATH=FILE" in _REMEDIES


@pytest.mark.parametrize("remedy", _REMEDIES)
def test_the_command_takes_each_option_that_a_sentence_names(remedy):
    requests = []
    app = Typer()

    @app.command()
    @takes_plan_request
    def take(request: PlanRequest) -> None:
        requests.append(request)

    done = CliRunner().invoke(app, [*_RECIPE, *remedy.replace("=FILE", "=/home/ada/token").split()])
    assert done.exit_code == 0, done.output
    CliRunner().invoke(app, list(_RECIPE))
    changed, unchanged = (plan(request).runs[0] for request in requests)
    assert (changed.performance, changed.environment) != (unchanged.performance, unchanged.environment)


@pytest.mark.parametrize("sentence", [text for text in _SENTENCES if _VARIABLE.search(text)])
def test_each_variable_that_a_sentence_names_is_accepted(sentence):
    for name in _VARIABLE.findall(sentence):
        assert f"--env {name}=" in sentence
        check_environment({name: "/home/ada/token"})
