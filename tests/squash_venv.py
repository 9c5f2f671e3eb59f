"""Make a squashfs image of a virtual environment, with all that it needs, for tests of containers.

    python3.11 squash_venv.py VENV OUT

In the image the environment is /opt/trainer. Its Python has the same path as on this machine. The image also
has a shell and the shared libraries to which Python and the packages are linked, so a job in it needs nothing
of the machine but the kernel. Needs mksquashfs (4.5 or newer) and ldd.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

_VENV = "opt/trainer"
_TOOLS = ("sh", "env")
_ENVIRONMENT = f"PATH=/{_VENV}/bin:/usr/local/bin:/usr/bin:/bin\nLANG=C.UTF-8\n"
"""Content of /etc/environment: the image's environment, as in an image that enroot has imported."""
_NOT_NEEDED = frozenset({"site-packages", "dist-packages", "test", "idlelib", "tkinter", "ensurepip"})
"""Folders below Python's standard library that are left out."""
_FOR_COMPILERS = (".h", ".hpp", ".cuh", ".pyi", ".pyx", ".pxd", ".a")
"""Suffixes of files for compilers; they are a quarter of all files, and no run reads them."""
_TOP = ("bin", "lib", "lib64", "sbin")
_EMPTY = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var")
_COMPRESSION = ("-comp", "zstd", "-Xcompression-level", "1")
_BATCH = 100
_TRAINERS_IMPORT = "nemo/collections/llm"


def main():
    """Write a squashfs image of the virtual environment that the arguments name; return the exit code."""
    venv, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    python = Path(_python_says(venv, "import os, sys; print(os.path.realpath(sys._base_executable))"))
    library = Path(_python_says(venv, "import sysconfig; print(sysconfig.get_path('stdlib'))"))
    began = time.monotonic()
    _compile(venv)
    with subprocess.Popen(
        ["mksquashfs", "-", str(out), "-tar", "-quiet", "-no-progress", "-all-root", *_COMPRESSION],  # noqa: S607
        stdin=subprocess.PIPE,
    ) as squash:
        if squash.stdin is None:
            raise TypeError("no pipe to mksquashfs")
        try:
            with tarfile.open(fileobj=squash.stdin, mode="w|") as archive:
                _fill(archive, venv, python, library)
            squash.stdin.close()
        except BrokenPipeError:  # it has ended, and has printed why
            squash.wait()
    if squash.returncode == 0:
        print(f"squashed after {time.monotonic() - began:.0f} s", flush=True)
    return squash.returncode


def _python_says(venv, code):
    """Return what a program prints in the environment's Python. Raises CalledProcessError if it fails."""
    done = subprocess.run([venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _compile(venv):
    """Import the trainer's dependencies once, so that their compiled modules are in the read-only image.

    On two cores this takes 25 s once, and it saves each rank of every job 11 s.
    """
    imported = next(venv.glob(f"lib/python3*/site-packages/{_TRAINERS_IMPORT}"), None)
    if imported is None or (imported / "__pycache__").is_dir():
        return
    print("importing what the trainer imports, so that its modules are compiled", flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    code = f"import {_TRAINERS_IMPORT.replace('/', '.')}"
    subprocess.run(
        [venv / "bin" / "python", "-W", "ignore", "-c", code],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,  # the job will fail with the reason
    )


def _fill(archive, venv, python, library):
    tools = [Path(program).resolve() for tool in _TOOLS if (program := shutil.which(tool))]
    for folder in _TOP:  # links to /usr/… on today's systems; else a folder, which comes with its files
        if (link := Path("/", folder)).is_symlink():
            _add_link(archive, folder, str(link.readlink()))
    for folder in _EMPTY:
        _add_folder(archive, folder)
    _add_text(archive, "etc/environment", _ENVIRONMENT)
    archive.add(venv, _VENV, filter=lambda member: None if member.name.endswith(_FOR_COMPILERS) else member)
    archive.add(python, _inside(python))
    archive.add(library, _inside(library), filter=_needed)
    for name, tool in zip(_TOOLS, tools, strict=True):
        archive.add(tool, f"usr/bin/{name}")
    shared = (path for top in (venv, library) for path in top.rglob("*.so*") if path.is_file())
    for path in sorted(_libraries([python, *tools, *shared], besides=(venv, library))):
        # What the link of that name leads to, under the name by which it is asked for.
        archive.add(path.resolve(), _inside(path.parent.resolve() / path.name))


def _needed(member):
    return None if _NOT_NEEDED & set(Path(member.name).parts) else member


def _libraries(files, besides):
    """Yield the shared libraries and the loader that the files need, except those below `besides`."""
    names = sorted({str(path) for path in files})
    libraries = set()
    for start in range(0, len(names), _BATCH):
        done = subprocess.run(
            ["ldd", *names[start : start + _BATCH]],  # noqa: S607 (wherever it is)
            capture_output=True,
            text=True,
            check=False,
        )
        libraries.update(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE))
    for name in libraries:
        if not any(Path(name).is_relative_to(top) for top in besides):
            yield Path(name)


def _inside(path):
    return str(path).lstrip("/")


def _add_link(archive, name, target):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    archive.addfile(member)


def _add_folder(archive, name):
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(member)


def _add_text(archive, name, text):
    member = tarfile.TarInfo(name)
    data = text.encode()
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    sys.exit(main())
