"""The list of commands, which is shown without importing one."""

import importlib
from pathlib import Path

import pytest
from typer.main import get_group

from steptime import cli
from steptime.cli.commands import LISTED, imported

MODULES = sorted(
    path.stem
    for path in Path(cli.__file__).parent.glob("[a-z]*.py")
    if "\napp = typer.Typer(" in path.read_text()
)


@pytest.mark.parametrize("name", LISTED)
def test_what_is_listed_is_how_the_help_begins(name: str) -> None:
    beginning = imported(name).help.split("\n\n")[0]
    assert " ".join(beginning.split()) == LISTED[name].summary


@pytest.mark.parametrize("module", MODULES)
def test_every_command_of_a_module_is_listed(module: str) -> None:
    listed = {name for name, command in LISTED.items() if command.module == module}
    assert listed == set(get_group(importlib.import_module(f"steptime.cli.{module}").app).commands)
