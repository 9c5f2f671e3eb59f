"""Runs a command on this machine from a list of arguments, handing its output on line by line."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence

from steptime.clusters.base import Completed
from steptime.clusters.command_output import collect
from steptime.errors import SystemFailure

_NOT_PASSED_ON = {"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
"""Variables about the environment that steptime runs in: a command may start another Python."""


async def run_command(
    argv: Sequence[str], *, timeout_s: float, on_output: Callable[[str], None] | None
) -> Completed:
    """Run `argv` to its end; see `Cluster.run`.

    A command that does not exist ends with exit code 127, as over ssh. One that takes longer than `timeout_s`
    (SystemFailure), or whose caller is cancelled, is killed with its process group.
    """
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON},
            process_group=0,  # killed as a group, yet in the caller's session: it ends with `steptime down`
        )
    )
    try:
        # If its start were cancelled, asyncio would kill the command alone, and wait for its children.
        process = await asyncio.shield(starting)
    except (FileNotFoundError, PermissionError) as error:
        return Completed(exit_code=127, stdout="", stderr=f"{argv[0]}: {error.strerror}\n")
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # it could not be started
            await _kill(await starting)
        raise
    try:
        async with asyncio.timeout(timeout_s):
            stdout, stderr, exit_code = await asyncio.gather(
                _all_of(process.stdout, on_output, argv[0]),
                _all_of(process.stderr, on_output, argv[0]),
                process.wait(),
            )
    except BaseException as error:
        await _kill(process)
        if not isinstance(error, TimeoutError):
            raise
        raise SystemFailure(f"the command {argv[0]} was ended after {timeout_s:g} s: {list(argv)}") from None
    return Completed(exit_code=exit_code, stdout=stdout, stderr=stderr)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process group of a command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _all_of(
    stream: asyncio.StreamReader | None, on_output: Callable[[str], None] | None, command: str
) -> str:
    if stream is None:  # both are pipes
        raise TypeError("no stream to read")
    return await collect(stream.read, on_output, of=command)
