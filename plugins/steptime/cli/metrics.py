"""Commands: to be written."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this group."""
