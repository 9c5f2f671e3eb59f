"""Go on where no other process can be seen, and leave none behind: a pid namespace for changed code."""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_NEWNS, _NEWUSER, _NEWPID = 0x20000, 0x10000000, 0x20000000
_NOSUID_NODEV_NOEXEC, _PRIVATE_BELOW = 0x2 | 0x4 | 0x8, 0x4000 | 0x40000
_PR_SET_PDEATHSIG = 1
_CAPABILITY_VERSION_3 = 0x20080522


def enter() -> None:
    """Return in a new process; the calling one only waits, and ends with its exit code (or 128 + its signal).

    The new process sees itself, what it starts, and a first process that takes in what others leave. All of
    them end with it, and with the process that called. Raises OSError where that is not permitted.
    """
    user, group = os.geteuid(), os.getegid()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    _call("unshare", _NEWPID | _NEWNS | (_NEWUSER if user else 0))
    if user:
        for name, content in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(content, encoding="ascii")
    _go_on_in_fork()  # as the first process of the namespace
    end_with_parent()
    _call("mount", b"none", b"/", None, _PRIVATE_BELOW, None)
    _call("mount", b"proc", b"/proc", b"proc", _NOSUID_NODEV_NOEXEC, None)
    _go_on_in_fork()  # as any process: signals reach it
    if user:  # without the capabilities that a user namespace gives, with which no file is closed to it
        _call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())
    signal.signal(signal.SIGINT, interrupt)


def run(program: Sequence[str]) -> int:
    """Run a program in a namespace of its own. Returns its exit code; 127 where it could not be started."""
    child = os.fork()
    if child == 0:
        try:
            enter()
            os.execvp(program[0], [*program])  # noqa: S606
        except OSError as error:
            print(f"{program[0]}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def end_with_parent() -> None:
    """Let this process be killed once the one that started it has ended."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _go_on_in_fork() -> None:
    child = os.fork()
    while child:
        ended, status = os.wait()  # others are what a process of the namespace left to its first one
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
