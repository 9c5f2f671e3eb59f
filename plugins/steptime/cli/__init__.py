"""The `steptime` command: one module per group of commands, over the same functions that the DAGs use.

Exit codes: 0 done, 1 bad input, 2 the system or a job failed. Data goes to stdout, everything else to stderr.
"""

import importlib
import sys

import typer

from steptime import __version__
from steptime.cli.output import complain
from steptime.errors import SystemFailure, UserError

app = typer.Typer(
    name="steptime",
    help="Benchmark LLM pre-training on GPU clusters: plan, run, read logs, show results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"steptime {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print it."
    ),
) -> None:
    pass


for _group in ("recipes", "metrics", "logs", "service", "run", "results"):
    importlib.import_module(f"steptime.cli.{_group}").register(app)


def main() -> None:
    """Entry point: turns the two kinds of error into one sentence and the documented exit code."""
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        # Without any arguments Typer has printed the help and leaves the message empty.
        if message := error.format_message().replace("Value error, ", "").rstrip("."):
            command = getattr(getattr(error, "ctx", None), "command_path", "steptime")
            complain(f"{message}. See '{command} --help'.")
        sys.exit(1)
    except typer.Abort:
        complain("stopped.")
        sys.exit(2)
    except (UserError, SystemFailure) as error:
        complain(str(error))
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
