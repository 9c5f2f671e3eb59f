"""Errors on the command line: how they are printed, and those of usage, such as an unknown option."""

import os
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

try:
    from typer import TyperException
except ImportError:  # before Typer 0.26
    from click import ClickException as TyperException  # type: ignore[assignment]

from steptime.errors import UserError, one_line, unknown_value
from steptime.refusals import describe_validation_error

__all__ = ["Commands", "TyperException", "complain", "usage_sentence"]


class Commands(TyperGroup):
    """A command group whose error for an unknown command lists the nearest one and all others."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` begins with.

        Raises UserError if there is no such command, or if options before it would have no effect.
        """
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_value("command", args[0], self.list_commands(ctx), of=f"'{ctx.command_path}'")
        given = [param for param in self.params if _is_written(ctx, param)]
        if given:
            option = max(given[0].opts, key=len)
            raise UserError(
                f"{option} has no effect before '{args[0]}': put it after "
                f"'{ctx.command_path} {args[0]}', if that command has it."
            )
        return super().resolve_command(ctx, args)


def _is_written(ctx: Any, param: Any) -> bool:
    source = ctx.get_parameter_source(param.name)
    return source is not None and source.name == "COMMANDLINE"


def complain(sentence: str) -> None:
    """Print an error on stderr: one sentence, possibly followed by lines of a log."""
    lines = (one_line(line, at_most=None) for line in sentence.splitlines())
    colour = None if os.environ.get("NO_COLOR") else typer.colors.RED
    typer.secho("steptime: " + "\n".join(lines), err=True, fg=colour)


def usage_sentence(error: TyperException) -> str:
    """Describe a usage error with the offending value; empty if Typer has already printed the help."""
    details: Any = error  # the kinds of error are not public, only what they have in common
    context: typer.Context | None = getattr(error, "ctx", None)
    hint = f" See '{context.command_path} --help'." if context else ""
    if context and hasattr(error, "possibilities"):
        return str(_unknown_option(details.option_name, context.command, context.command_path))
    if isinstance(error.__cause__, ValidationError):
        return _wrong_value(max(details.param.opts, key=len), error.__cause__) + hint
    message = one_line(error.format_message(), at_most=None).rstrip(".")
    return f"{message}.{hint}" if message else ""


def _unknown_option(option: str, command: Any, path: str) -> UserError:
    """Return the error for an unknown option; it says so if the command takes that value as an argument."""
    name = option.lstrip("-").replace("-", "_")
    for argument in (param for param in command.params if param.param_type_name == "argument"):
        called = {argument.name, str(argument.metavar).lower()}
        if argument.name == "name":  # of a sweep, a trial or a cluster
            called |= set(path.split())
        if name in called:
            return UserError(f"'{path}' takes this without '{option}': {path} {argument.metavar}.")
    names = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
    options = [name for name in names if name.startswith("--")]
    return unknown_value("option", option, options, of=f"'{path}'")


def _wrong_value(option: str, refusal: ValidationError) -> str:
    problem = refusal.errors(include_url=False)[0]
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return str(cause)
    return f"{option} '{one_line(problem['input'])}': {describe_validation_error(problem)}."
