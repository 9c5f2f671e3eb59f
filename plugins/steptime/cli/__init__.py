"""The `steptime` command. `commands.py` lists the commands, which call the same functions as the DAGs.

Exit codes: 0 done, 1 bad input, 2 the system or a job failed, 3 a slowdown is confirmed. Data goes
to stdout, everything else to stderr.
"""

import contextlib
import io
import os
import select
import signal
import sys
from pathlib import Path

import typer

from steptime import __version__
from steptime.cli.commands import LazyCommands
from steptime.cli.usage import TyperException, complain, usage_sentence
from steptime.errors import BrokenFiles, SystemFailure, UserError, one_line

app = typer.Typer(
    name="steptime",
    cls=LazyCommands,
    help="Benchmark LLM pre-training on GPU clusters: plan, run, read logs, show results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"steptime {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


class _Terminated(BaseException):
    """Raised where the program is when it gets SIGTERM, so that it removes its temporary files."""


_signals: list[int] = []
"""Signals that this process got: while JSON is written, pydantic makes another error of what they raise."""


def _terminate(number: int, _frame: object) -> None:
    _signals.append(number)
    raise _Terminated


def _interrupt(number: int, _frame: object) -> None:
    _signals.append(number)
    raise KeyboardInterrupt


def main() -> None:
    """Run the `steptime` command; report each error in one sentence, with the documented exit code.

    `STEPTIME_DEBUG=1` shows the traceback of an unexpected error.
    """
    if sys.stderr is None:  # closed by `2>&-`: its number must not become that of another file
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            main()  # it ends the process
    if sys.stdout is None:
        complain("its output is closed: give it one, as in '> results.txt'. Nothing was done.")
        sys.exit(2)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # If the terminal has no such character, or a path is no text: show its code instead of failing.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        exit_code = _run()
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
        raise
    except (BrokenPipeError, SystemExit):  # Typer and rich make the latter of the former
        # As other tools end whose output goes to `head`: quietly, by the signal that Python ignores.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.raise_signal(signal.SIGPIPE)
        raise
    _drop_what_cannot_be_written()
    sys.exit(exit_code)


def _drop_what_cannot_be_written() -> None:
    """Discard output that a full disk does not take: Python would complain about it again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except TyperException as error:
        sentence, exit_code = usage_sentence(error), 1
    except typer.Abort:
        sentence, exit_code = "stopped.", 2
    except BrokenFiles as error:
        sentence, exit_code = str(error), error.exit_code
    except UserError as error:
        sentence, exit_code = one_line(error, at_most=None), error.exit_code
    except SystemFailure as error:
        sentence, exit_code = str(error), error.exit_code
    except UnicodeEncodeError as error:
        sentence, exit_code = f"'{one_line(error.object)}' is no valid text: write it in UTF-8.", 1
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not _is_read():
            raise
        file = error.filename2 or error.filename  # of a rename, the second is what was asked for
        what = f"'{file}' cannot be used" if file else "cannot go on"
        sentence, exit_code = f"{what}: {error.strerror or error}.", 2
    except Exception as error:
        sentence, exit_code = _describe_fault(error), 2
    if sentence:
        complain(sentence)
    return exit_code


def _describe_fault(error: Exception) -> str:
    """Return the sentence about an error that nothing expected; raise what a signal meant by it instead."""
    if signal.SIGTERM in _signals:
        raise _Terminated from error
    if os.environ.get("STEPTIME_DEBUG"):
        raise error
    if signal.SIGINT in _signals:
        return "stopped."
    fault = f"a fault of steptime itself, {type(error).__name__}: {one_line(error)}"
    return f"{fault}. Please report it with what STEPTIME_DEBUG=1 shows."


def _is_read() -> bool:
    """Return whether stdout and stderr can still be written: no program that they are piped to has exited."""
    outputs = select.poll()
    for stream in (sys.stdout, sys.stderr):
        outputs.register(stream.fileno(), 0)
    return not any(event & select.POLLERR for _, event in outputs.poll(0))
