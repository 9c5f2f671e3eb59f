"""Write the pages of the site that follow from the code: `python docs/make_reference.py FOLDER`.

Commands with their options, columns of results, and fields of cluster files. `make site` calls it.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from steptime.cli import app
from steptime.clusters.config import ClusterConfig
from steptime.clusters.slurm.node_check import NodeCheck
from steptime.plug_points import CLUSTER_KINDS
from steptime.store.columns import COLUMNS

_MARKUP = re.compile(r"\[/?(?:bold|italic|dim)\]")
_NOT_SHOWN = ("--help",)


def commands() -> str:
    """Return the page of all commands, in the order of `steptime --help`."""
    lines = [
        "# Commands",
        "",
        "Generated from the command line itself: `steptime COMMAND --help` says the same.",
    ]
    for path, command in _commands(typer.main.get_command(app), ("steptime",)):
        lines += ["", f"## {' '.join(path)}", "", _cell(_MARKUP.sub("", command.help or ""))]
        lines += _parameters(command)
        if command.epilog:
            examples = [line for line in _MARKUP.sub("", command.epilog).split("\n\n")[1:] if line.strip()]
            lines += ["", "```", *(line.strip() for line in examples), "```"]
    return "\n".join(lines) + "\n"


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) > 1:
        yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


def _parameters(command: Any) -> Iterator[str]:
    rows = []
    for one in command.params:
        if one.opts[0] in _NOT_SHOWN or one.hidden:
            continue
        given = (*one.opts, *one.secondary_opts)
        names = ", ".join(f"`{name}`" if name.startswith("-") else f"`{name.upper()}`" for name in given)
        text = _cell(one.help or "")
        if isinstance(one.show_default, str):
            text += f" Default: {_cell(one.show_default)}."
        elif isinstance(one.default, str | int | float) and not isinstance(one.default, bool):
            text += f" Default: `{one.default}`."
        if one.envvar:
            text += f" Variable: `{one.envvar}`."
        rows.append((names, text))
    return _table(("option", "meaning"), rows)


def columns() -> str:
    """Return the page of the columns of results."""
    rows = [(f"`{one.name}`", one.kind, one.unit, _cell(one.description)) for one in COLUMNS]
    head = (
        "# Columns of results\n\nIn the store, in CSV and in JSON. `steptime results columns` lists them.\n"
    )
    return head + "\n".join(_table(("column", "type", "unit", "meaning"), rows)) + "\n"


def cluster_fields() -> str:
    """Return the page of the fields of `config/clusters/*.yaml`."""
    lines = ["# Fields of a cluster's file", "", "[Clusters](clusters.md) explains them by topic."]
    kinds = {name: CLUSTER_KINDS.load(name, "config").Config for name in CLUSTER_KINDS.built_in}
    parts = [("All kinds", ClusterConfig), *((f"`kind: {name}`", model) for name, model in kinds.items())]
    for title, model in [*parts, ("`node_check`", NodeCheck)]:
        rows = [(f"`{name}`", _default(model, name), text) for name, text in _documented(model)]
        lines += ["", f"## {title}", *_table(("field", "default", "meaning"), rows)]
    return "\n".join(lines) + "\n"


def _documented(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Return the fields of a model with their docstrings, without those that all kinds of cluster have."""
    shared = set() if model is ClusterConfig else set(ClusterConfig.model_fields)
    for owner in reversed(model.__mro__):
        if not owner.__module__.startswith("steptime.") or (shared and owner in ClusterConfig.__mro__):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for statement, after in zip(statements, [*statements[1:], None], strict=True):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = str(after.value.value)
            if (name := statement.target.id) in model.model_fields and name not in ("kind", "name"):
                yield name, _cell(text)


def _default(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    value = field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined
    if value is PydanticUndefined:
        return "required"
    return "" if value in (None, (), {}) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    rows, head = [*rows], [*head]
    if rows:
        yield from ("", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}")
        yield from (f"| {' | '.join(row)} |" for row in rows)


def _cell(text: str) -> str:
    """Return text as one line for a cell of a Markdown table."""
    plain = " ".join(inspect.cleandoc(text).split())
    code = re.split(r"(`[^`]*`)", plain)
    for at in range(0, len(code), 2):
        code[at] = code[at].replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_").replace("[", r"\[")
    return "".join(code).replace("|", r"\|")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, page in (("commands", commands), ("columns", columns), ("cluster-fields", cluster_fields)):
        (folder / f"{name}.md").write_text(page(), encoding="utf-8")
