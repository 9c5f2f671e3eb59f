"""Every `steptime` command of README.md and docs/ exists, and those that need no Airflow work."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptime.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NEED_NOTHING = ("recipes", "plan", "metrics")
"""Commands that need neither Airflow nor a metrics store nor logs."""

runner = CliRunner()


def _commands(page):
    """Yield the `steptime` commands in inline code and blocks of a page, without redirections or comments."""
    fence = re.compile(r"^\s*```.*?^\s*```", re.MULTILINE | re.DOTALL)
    text = page.read_text()
    inline = re.findall(r"`([^`]+)`", fence.sub("", text))
    blocks = "\n".join(fence.findall(text)).splitlines()
    for code in inline + [line.strip().removeprefix("$ ") for line in blocks]:
        if match := re.fullmatch(r"(?:\S*/)?steptime\s+([a-z-][^|>#]*).*", " ".join(code.split())):
            yield match[1].strip()


FIRST = sorted(set(_commands(ROOT / "docs" / "guide" / "first-run.md")))
ALL = sorted({command for page in PAGES for command in _commands(page)} - {"--version"})
"""All but one that ends before its help."""


@pytest.mark.parametrize("command", ALL)
def test_command_and_flags_exist(command, monkeypatch):
    """With --help after it a command is parsed but not run, and its help is printed."""
    monkeypatch.setattr("typer.core.HAS_RICH", False)
    result = runner.invoke(app, [*shlex.split(command), "--help"])
    assert result.exit_code == 0, result.stderr
    assert "Usage: steptime" in result.stdout


@pytest.mark.parametrize("command", [command for command in FIRST if command.startswith(NEED_NOTHING)])
def test_commands_of_the_first_page_work(command):
    result = runner.invoke(app, shlex.split(command), catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout
