"""The commands that `steptime --help` lists, and what is imported for them."""

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from steptime.cli import app
from steptime.cli.commands import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_commands_own_help_says(name):
    command = getattr(get_command(app), "commands")[name]  # noqa: B009
    first, *_ = (command.help or "").split("\n\n")
    assert " ".join(first.split()) == COMMANDS[name].summary


def test_every_command_is_listed_once_in_order():
    lines = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300"}).stdout.splitlines()
    listed = [line.strip("│ ").split("  ")[0] for line in lines if line.startswith("│")]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
