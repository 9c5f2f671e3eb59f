"""The flags of `plan` and `run`, generated from the fields of `PlanRequest`.

    @app.command()
    @takes_plan_request
    def run(request: PlanRequest, *, wait: Annotated[bool, typer.Option("--wait")] = False) -> None: ...

gives a command `run WORKLOAD --cluster … --size … --wait`. There is one flag for each field, with the field's
description as its help. The help groups the flags into the same sections as the trigger form in Airflow.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from steptime.errors import UserError, one_line
from steptime.recipes.planning import PlanRequest, parse_request
from steptime.recipes.request import DICTIONARIES, option_fields, options_in_words, sections


def takes_plan_request(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the first parameter of `command`, a `PlanRequest`, by the workload and a flag for each option.

    Values that `PlanRequest` refuses raise UserError. Combinations that fit no recipe are refused later, by
    `plan()`.
    """
    fields = option_fields()
    others = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def with_flags(**values: Any) -> Any:
        with options_in_words(flag_of):
            request = _request({name: values.pop(name) for name in ("workload", *fields)})
            return command(request, **values)

    flags = [_argument("workload", PlanRequest.model_fields["workload"])]
    flags += [_flag(name, fields[name], panel) for panel, names in sections().items() for name in names]
    # Typer reads both: the signature for names and defaults, the annotations for the types.
    with_flags.__signature__ = inspect.Signature(flags + others)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in flags + others}
    return with_flags


def flag_of(option: str) -> str:
    """Return an option's flag: `--size`, and `--[no-]gres` for one that can be on, off or the default's."""
    if option in DICTIONARIES:
        return DICTIONARIES[option]
    can_be_off = bool in get_args(option_fields()[option].annotation)
    return f"--{'[no-]' if can_be_off else ''}{option.replace('_', '-')}"


def _argument(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the Typer parameter for a field without a default."""
    marker = typer.Argument(metavar=name.upper(), help=field.description, show_default=False)
    return _keyword(name, Annotated[str, marker])


def _flag(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    """Return the Typer parameter for a field with a default: repeated NAME=VALUE flags for a dictionary."""
    of_all: dict[str, Any] = {"help": field.description, "rich_help_panel": panel}
    if name in DICTIONARIES:
        marker = typer.Option(DICTIONARIES[name], metavar="NAME=VALUE", **of_all)
        return _keyword(name, Annotated[list[str] | None, marker], default=None)
    default = field.get_default(call_default_factory=True)
    kinds = set(get_args(field.annotation) or (field.annotation,)) - {NoneType}
    kind: Any = next((simple for simple in (bool, int, float) if simple in kinds), str)
    annotation = kind if default is not None else kind | None
    return _keyword(name, Annotated[annotation, typer.Option(**of_all)], default=default)


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _request(values: dict[str, Any]) -> PlanRequest:
    for name, flag in DICTIONARIES.items():
        values[name] = _assignments(flag, values[name] or ())
    return parse_request(values)


def _assignments(flag: str, texts: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"{flag} '{one_line(text)}' is not of the form NAME=VALUE.")
        if name in values:
            raise UserError(f"{flag} gives '{one_line(name)}' twice: keep one.")
        values[name] = value
    return values
