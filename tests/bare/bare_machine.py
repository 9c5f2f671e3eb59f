"""The README's commands on a bare machine: a container that has python3, make and git, and nothing else.

    tests/bare/bare_machine.py check [--debian trixie]     make check, as a plain user with a long name
    tests/bare/bare_machine.py demo [--debian trixie]      make demo, as the same user
    tests/bare/bare_machine.py pages [--debian trixie]     the commands of README and the guide, in order
    tests/bare/bare_machine.py slurm [--debian noble]      the tests on the Slurm of that release

The container is made by debootstrap, and runs a fresh clone of the last commit. Only Python's own library is
used here, as this runs before anything is installed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from compose.engine import DEBIAN, NoEngineError, engine, make_image  # noqa: E402
from pages import ELSEWHERE, scripts  # noqa: E402

UBUNTU = "http://archive.ubuntu.com/ubuntu"
UBUNTU_RELEASES = ("noble", "resolute")
USER = "performance-engineer"
"""A plain user without sudo, whose name makes the paths of temporary folders long."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_SITE = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_INDEX_URL", "UV_INDEX_URL", "PIP_FIND_LINKS")
"""Variables by which a machine names its mirrors and certificates."""


class Failed(Exception):
    """A command in the container did not do what it should."""


class BareMachine:
    """A running container with a clone of the last commit in the home of `USER` and in that of root."""

    def __init__(self, name, environment, python):
        self.name, self.environment, self.python = name, environment, python

    def run(self, command, user, *, shown=True):
        """Run a shell command in the user's clone; return its exit code and what it printed."""
        home = "/root" if user == "root" else f"/home/{user}"
        folder = f"{home}/steptime"
        site = [f"--env={name}={os.environ[name]}" for name in _SITE if name in os.environ]
        argv = ["docker", "exec", f"--user={user}", f"--workdir={folder}", f"--env=HOME={home}", *site]
        argv += [f"--env=PYTHON={self.python}"] if self.python else []
        argv += [self.name, "bash", "-c", command]
        _say(f"$ {command.splitlines()[-1]}    (as {user})")
        printed = []
        with subprocess.Popen(
            argv, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line)
                if shown:
                    print(f"    {line}", end="", flush=True)
        return process.returncode, "".join(printed)

    def succeed(self, command, user, *, shown=True):
        """Run a shell command and return what it printed. Raises Failed if its exit code is not 0."""
        code, printed = self.run(command, user, shown=shown)
        if code:
            raise Failed(f"'{command}' of {user} ended with {code}:\n{printed[-5000:]}")
        return printed


@contextmanager
def bare_machine(debian, environment, python=None):
    """Yield a container of that release of Debian; it is removed afterwards.

    The container sees the installation of `python`, a program of this machine, under the same path.
    Raises NoEngineError if debootstrap fails.
    """

    def docker(*arguments):
        subprocess.run(["docker", *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)

    image, name = f"steptime-bare/{debian}", f"steptime-bare-{os.getpid()}"
    if not _has_image(image, environment):
        _say(f"debootstrap of {debian}")
        options, source = ["--include=ca-certificates,git,make,python3"], [DEBIAN]
        if debian in UBUNTU_RELEASES:  # Debian has neither its keys nor, in older releases, its script
            options += ["--components=main,universe", "--no-check-gpg"]
            source = [UBUNTU, "/usr/share/debootstrap/scripts/gutsy"]
        make_image(image, environment, debian, options=options, source=source)
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "steptime"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        # bwrap makes a container within this one, as it may on a machine without Docker.
        options = [f"--security-opt={part}=unconfined" for part in ("seccomp", "systempaths")]
        mounts = [Path(os.environ.get("PIP_FIND_LINKS", "/nowhere"))]
        mounts += [_CERTIFICATES] if _CERTIFICATES.exists() else []
        mounts += [python.parents[1]] if python else []
        options += [f"--volume={path}:{path}:ro" for path in mounts if path.exists()]
        docker(
            "run",
            "--detach",
            "--init",
            "--network=host",
            *options,
            "--name",
            name,
            image,
            "sleep",
            "infinity",
        )
        try:
            # In a file, too, as a login by ssh does not see the variables of the container.
            pip_settings = Path(folder, "pip.conf")
            pip_settings.write_text(_pip_settings())
            docker("cp", str(pip_settings), f"{name}:/etc/pip.conf")
            docker("exec", name, "useradd", "--create-home", "--shell=/bin/bash", USER)
            for home, user in ((f"/home/{USER}", USER), ("/root", "root")):
                docker("cp", str(clone), f"{name}:{home}/")
                docker("exec", name, "chown", "-R", f"{user}:", f"{home}/steptime")
            for above in python.parents[2:] if python else ():
                docker("exec", name, "chmod", "a+x", str(above))
            yield BareMachine(name, environment, python)
        finally:
            docker("rm", "--force", name)


def _pip_settings():
    """Return the mirrors and certificates that pip uses on this machine, as its settings file has them."""
    options = {
        name.removeprefix("PIP_").lower().replace("_", "-"): os.environ[name]
        for name in _SITE
        if name.startswith("PIP_") and name in os.environ
    }
    return "".join(["[global]\n", *(f"{option} = {value}\n" for option, value in options.items())])


def _has_image(image, environment):
    """Return whether the engine has the image; one of an earlier run will do."""
    look = subprocess.run(
        ["docker", "image", "inspect", image], env=environment, capture_output=True, check=False
    )
    return look.returncode == 0


def succeed_with_packages(machine, command):
    """Run a make target as a plain user, and return what it printed.

    If Debian packages are missing, the user is told the command for root, and nothing else runs; then root
    calls it. Raises Failed if the target is red for another reason, or still red.
    """
    for _ in range(2):  # what a Python without venv needs, and then what the tests use
        code, printed = machine.run(command, USER)
        if code == 0:
            return printed
        commands = re.findall(r"(?:sudo )?(apt-get (?:update|install) .*)", printed)
        if len(commands) != 1 or " passed" in printed:
            raise Failed(f"{command} is red, and names no command that would help")
        install = commands[0].replace("apt-get install", "apt-get install -y")
        machine.succeed(f"({install}) </dev/null >/dev/null", "root")
    return machine.succeed(command, USER)


def check(machine):
    """All is green for a plain user."""
    succeed_with_packages(machine, "make check")


def demo(machine):
    """A plain user sees four valid runs; nothing is left running."""
    printed = succeed_with_packages(machine, "make demo")
    if "4 of 4 valid" not in printed:
        raise Failed("make demo shows no four valid runs")
    machine.succeed(".venv/bin/steptime down", USER)


def follow_pages(machine):
    """Every command of README and the guide succeeds, in order; the small Slurm is the cluster."""
    succeed_with_packages(machine, "make setup")
    succeed_with_packages(machine, ".venv/bin/steptime slurm up")
    for commands in scripts().values():
        machine.succeed(f"export PATH=$PWD/.venv/bin:$PATH\n{commands}", USER)
    machine.succeed(".venv/bin/steptime down && .venv/bin/steptime slurm down", USER)
    for page, reason in ELSEWHERE.items():
        _say(f"NOT RUN HERE: {page}, as {reason}")


def try_slurm(machine):
    """The tests of the backend pass on this release's Slurm."""
    succeed_with_packages(machine, "make test-packages setup")
    marked = "slurm and not (exhaustive or end_to_end or browser)"
    folders = "tests/clusters tests/mini_slurm"
    machine.succeed(f".venv/bin/pytest -n 3 --dist loadgroup -m '{marked}' {folders}", USER)


_STEPS = {"check": check, "demo": demo, "pages": follow_pages, "slurm": try_slurm}


def _say(sentence):
    print(f"bare machine, {time.strftime('%H:%M:%S')}: {sentence}", flush=True)


def main():
    """Run one step; return 0 if it succeeded, or if no container can be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=_STEPS)
    parser.add_argument(
        "--debian",
        default="bookworm",
        help="release of Debian, or noble or resolute of Ubuntu (default: %(default)s)",
    )
    parser.add_argument(
        "--python",
        type=Path,
        help="a Python 3.11 of this machine that make gets as PYTHON, where uv cannot fetch one from GitHub",
    )
    arguments = parser.parse_args()
    python = arguments.python.resolve() if arguments.python else None
    started = time.monotonic()
    try:
        with engine() as environment, bare_machine(arguments.debian, environment, python) as machine:
            _STEPS[arguments.step](machine)
    except NoEngineError as reason:
        _say(f"SKIPPED: {reason}")
        return 0
    except Failed as failure:
        _say(f"FAILED: {failure}")
        return 1
    _say(
        f"make {arguments.step} succeeded on a bare {arguments.debian} in {time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
