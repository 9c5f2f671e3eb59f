"""`steptime recipes new`: the file of a workload, to start from."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.errors import SystemFailure, UserError, shown
from steptime.files import write_whole
from steptime.recipes.config_files import names_in
from steptime.recipes.workloads import load_workloads
from steptime.settings import config_dir, shipped

EXAMPLES = """
[bold]Examples[/bold]

steptime recipes new gpt5-26.01

steptime recipes new mixtral-26.01 --moe
"""

_NAME = re.compile(r"(?P<family>[a-z][a-z0-9.]*(?:-[a-z0-9.]+)*)-\d+\.\d+", re.ASCII)


def new_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Family and release, such as gpt5-26.01.")],
    *,
    moe: Annotated[bool, typer.Option("--moe", help="A mixture of experts.")] = False,
) -> None:
    """Write the file of a workload, to start from: with comments, and valid at once.

    It is written into the folder that is read (STEPTIME_CONFIG_DIR). No existing file is changed.
    """
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise UserError(
            f"'{shown(name)}' is not a workload name: write family and release, in small letters, as "
            "gpt5-26.01."
        )
    family = matched["family"]
    dag_id = re.sub(r"\W", "", family.replace("-", "_"))
    path = config_dir() / "workloads" / f"{name}.yaml"
    _require_configuration()
    _require_new(name, dag_id, path)
    values = {"name": name, "family": family, "title": family.capitalize(), "dag_id": dag_id, "moe": moe}
    try:
        write_whole(path, filled("new_workload.yaml.j2", values))
    except OSError as error:
        raise SystemFailure(f"'{path}' cannot be written: {error.strerror}") from error
    typer.echo(f"written: {path}")
    typer.echo(
        f"next: replace its numbers by your document's, and look at them: steptime recipes --workload {name}"
    )
    typer.echo(f"what would run: steptime plan {name}")


def _require_configuration() -> None:
    """Raise UserError if the config folder lacks files that every workload needs."""
    folder = config_dir()
    read = ("clusters", "flops.yaml", "gpus.yaml", "megatron_bridge.yaml")
    if missing := [name for name in read if not (folder / name).exists()]:
        raise UserError(
            f"'{folder}' (STEPTIME_CONFIG_DIR) has no {', '.join(missing)}: copy the shipped folder "
            f"'{shipped('config')}' there first."
        )


def _require_new(name: str, dag_id: str, path: Path) -> None:
    """Raise UserError if the file exists, or another workload has the same DAG id."""
    if path.exists() or path.is_symlink():
        raise UserError(f"'{path}' exists already: choose another name, or remove it.")
    there = load_workloads()[0] if names_in(config_dir() / "workloads") else ()
    for workload in there:
        if workload.dag_id == dag_id:
            raise UserError(
                f"the DAG '{dag_id}' of '{name}' is that of {workload.workload} already: choose another "
                "family, or copy that file for a further release of it."
            )


def filled(template: str, values: Mapping[str, Any], **filters: Callable[..., str]) -> str:
    """Fill in a template of this folder, optionally with additional filters."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("steptime.cli", package_path="."),
        autoescape=False,  # noqa: S701 (YAML and Python of values that the name's pattern allows)
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= filters
    return templates.get_template(template).render(values)
