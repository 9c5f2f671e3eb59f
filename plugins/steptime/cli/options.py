"""The flags that describe planned work: made once, from the fields of `PlanRequest`, for `plan` and `run`.

    @app.command()
    @takes_plan_request
    def run(request: PlanRequest, *, wait: Annotated[bool, typer.Option("--wait")] = False) -> None: ...

gives a command `run WORKLOAD --size … --dtype … --wait`: one flag a field, its help the field's description.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from types import NoneType
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from steptime.errors import UserError, shown
from steptime.recipes.planning import PlanRequest, parse_request


def takes_plan_request(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the first parameter of `command`, a `PlanRequest`, by one flag for each of its fields.

    Values that the model refuses raise UserError; what fits no recipe is refused by `plan()`.
    """
    fields = PlanRequest.model_fields
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def with_flags(**values: Any) -> Any:
        request = _request({name: values.pop(name) for name in fields})
        return command(request, **values)

    flags = [_parameter(name, field) for name, field in fields.items()]
    # Typer reads both: the signature for names and defaults, the annotations for the types.
    with_flags.__signature__ = inspect.Signature(flags + own)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in flags + own}
    return with_flags


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """The Typer parameter of a field: an argument if required, NAME=VALUE flags for a dictionary."""
    kinds = set(get_args(field.annotation) or (field.annotation,)) - {NoneType}
    default: Any = None if field.is_required() else field.get_default(call_default_factory=True)
    marker: Any
    if field.is_required():
        marker = typer.Argument(metavar=name.upper(), help=field.description, show_default=False)
        default = inspect.Parameter.empty
        annotation: Any = str
    elif _is_dictionary(field):
        marker = typer.Option("--env", metavar="NAME=VALUE", help=field.description)
        annotation, default = list[str] | None, None
    else:
        kind = next((simple for simple in (bool, int) if simple in kinds), str)
        marker = typer.Option(help=field.description)
        annotation = kind if default is not None else kind | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, marker]
    )


def _is_dictionary(field: FieldInfo) -> bool:
    return getattr(field.annotation, "__origin__", field.annotation) is dict


def _request(values: dict[str, Any]) -> PlanRequest:
    for name, field in PlanRequest.model_fields.items():
        if _is_dictionary(field):
            values[name] = _assignments(values[name] or ())
    return parse_request(values)


def _assignments(texts: Iterable[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"--env '{shown(text)}' is not of the form NAME=VALUE.")
        if name in values:
            raise UserError(f"--env gives '{shown(name)}' twice: keep one.")
        values[name] = value
    return values
