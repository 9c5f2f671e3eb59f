"""Bring a container image into one file. Runs on the cluster, started by the cluster's own Python.

    python3.11 import_image.py TARGET IMAGE enroot|apptainer URI
    python3.11 import_image.py --look TARGET IMAGE enroot|apptainer URI

TARGET is the image's file, `….sqsh` or `….sif`. IMAGE is the image's name for the record. enroot or apptainer
fetch the image from URI, with the logins of their own configuration.

The file is written under a temporary name, synced, and renamed when it is complete (`make_once.py`).
`TARGET.json` beside it records what it is. An existing file is kept if it matches its record. A complete file
without a record, as when somebody copied it there, is kept and recorded.

With --look nothing is made; the last line of output says where the image is: in its file or its registry.

Standard library only. The last line of output has the reason of a failure. Exit code 0: the file exists; 1:
it could not be made; 2: it could not be made, and another try will not help; 3: --look cannot find out.
"""

import hashlib
import json
import platform
import re
import shutil
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from steptime.files import write_whole
from steptime.staging.make_once import Run, exit_on_sigterm, make_once, record_path

_SQUASHFS = struct.Struct("<4s36xQ")
"""The magic number and the bytes used, at the start of a squashfs file; written last by mksquashfs."""
_RECORDED = {"image", "source", "sha256", "size", "mtime_ns"}
"""Fields without which a record is ignored."""


class _ImportFailedError(Exception):
    """The image cannot be provided, with the reason in one sentence."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class _Import(NamedTuple):
    """The script's arguments; the module's docstring describes them."""

    target: Path
    image: str
    kind: str
    """The program that makes the file: `enroot` or `apptainer`."""
    source: str
    """The URI that it is made from."""


def main() -> int:
    """Import the image that the arguments name unless its file exists; return the exit code."""
    looks, arguments = sys.argv[1] == "--look", sys.argv[-4:]
    wanted = _Import(Path(arguments[0]), *arguments[1:])
    exit_on_sigterm()
    try:
        if looks:
            return _look(wanted)
        make_once(wanted.target, "import of", partial(_is_there, wanted), partial(_make, wanted))
    except _ImportFailedError as error:
        print(f"failed: {error}", flush=True)
        return error.exit_code
    except OSError as error:
        print(f"failed: {error}", flush=True)
        return 1
    return 0


def _look(wanted: _Import) -> int:
    """Print where the image is available; return 0, or 3 if that is unknown before it is fetched.

    Raises `_ImportFailedError` if the program is missing, or if the registry refused or has no such image.
    """
    if wanted.target.exists():
        print(f"{wanted.target} is there", flush=True)
        return 0
    tool = _tool_version(wanted.kind)
    digest, errors = _registry_digest(wanted.kind, wanted.source)
    if digest is not None:
        print(f"its registry has {wanted.source}: {digest}", flush=True)
        return 0
    _raise_known_cause(wanted.kind, errors, wanted.target)
    print(f"{tool} does not ask a registry without fetching the image: a first run shows it", flush=True)
    return 3


def _is_there(wanted: _Import) -> bool:
    """Return whether the file exists and matches its record; record a complete import that has none."""
    target = wanted.target
    if not target.exists():
        return False
    record = _read_record(target)
    if record is None:
        return _adopted(wanted)
    if (record["image"], record["source"]) != (wanted.image, wanted.source):
        print(f"{target} is {record['image']} of {record['source']}: it is replaced", flush=True)
        return False
    status = target.stat()
    if (status.st_size, status.st_mtime_ns) != (record["size"], record["mtime_ns"]):
        print(f"{target} was written to since: reading it", flush=True)
        if _sha256(target) != record["sha256"]:
            print(f"{target} is not what was recorded ({record['sha256']}): it is replaced", flush=True)
            return False
        _write_record(target, {**record, "mtime_ns": status.st_mtime_ns})
    print(f"{target} is there already", flush=True)
    return True


def _adopted(wanted: _Import) -> bool:
    """Record a file that has no record, as when somebody copied it; return False if it is incomplete."""
    target = wanted.target
    try:
        _require_whole(target)
    except _ImportFailedError as error:
        print(f"{error}: it is replaced", flush=True)
        return False
    print(f"{target} is there without a record: reading it", flush=True)
    _write_record(target, _described(target, wanted, {"tool": None, "digest": None}))
    return True


def _make(wanted: _Import, part: Path, run: Run) -> dict[str, Any]:
    """Write the image to the file `part`; return its record.

    Raises `_ImportFailedError` if it cannot be fetched or is incomplete.
    """
    target = wanted.target
    began = time.monotonic()
    tool = _tool_version(wanted.kind)
    digest, _ = _registry_digest(wanted.kind, wanted.source)
    argv = _command(wanted.kind, _pinned(wanted.source, digest), part)
    exit_code, output = run(argv)
    if exit_code:
        _raise_known_cause(argv[0], output, target)
        raise _ImportFailedError(f"{argv[0]} ended with exit code {exit_code}", 1)
    _require_whole(part)
    record = _described(part, wanted, {"tool": tool, "digest": digest})
    record["imported_in_s"] = time.monotonic() - began
    took, size = record["imported_in_s"], record["size"] / 1e6
    print(f"{target} is complete after {took:.0f} s: {size:.0f} MB, sha256 {record['sha256']}", flush=True)
    return record


def _require_whole(path: Path) -> None:
    """Raise `_ImportFailedError` for a file that is empty, or an incomplete squashfs."""
    size = path.stat().st_size if path.exists() else 0
    whole = size > 0
    if whole and ".sqsh" in path.suffixes:
        with path.open("rb") as file:
            head = file.read(_SQUASHFS.size)
        magic, used = _SQUASHFS.unpack(head) if len(head) == _SQUASHFS.size else (b"", 0)
        whole = magic == b"hsqs" and 0 < used <= size
    if not whole:
        raise _ImportFailedError(f"{path} is not a complete image ({size} bytes)", 1)


# --- what makes the file -------------------------------------------------------------------------------


def _command(kind: str, source: str, part: Path) -> list[str]:
    """Return the command that writes the image to `part`, without secrets in its arguments."""
    if kind == "enroot":
        return ["enroot", "import", "--output", str(part), "--", source]
    return ["apptainer", "pull", str(part), source]


def _tool_version(program: str) -> str:
    """Return name and version of the program. Raise `_ImportFailedError` if it is missing."""
    if shutil.which(program) is None:
        raise _ImportFailedError(
            f"{program} is not installed on {platform.node()}: install it there, or set import_in_job: true "
            "if the compute nodes have it, or put the image in its place by hand",
            2,
        )
    printed = subprocess.run([program, "version"], capture_output=True, text=True, check=False).stdout
    version = printed.partition("\n")[0].strip() or "of an unknown version"
    return version if program in version else f"{program} {version}"


def _registry_digest(kind: str, source: str) -> tuple[str | None, str]:
    """Return the digest of the image's manifest, or None, and what the program printed on stderr.

    The digest is in the image's name, or enroot (4.0 or newer) asks the registry for it.
    """
    _, pinned, digest = source.partition("@sha256:")
    if pinned:
        return f"sha256:{digest}", ""
    if kind != "enroot":
        return None, ""
    command = ["enroot", "digest", "--", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.fullmatch(r"sha256:[0-9a-f]{64}", done.stdout.strip())
    return match[0] if match and done.returncode == 0 else None, done.stderr


def _pinned(source: str, digest: str | None) -> str:
    """Return the image name with that digest, so that a moved tag changes nothing."""
    return source if digest is None or "@" in source else f"{source.rpartition(':')[0]}@{digest}"


def _raise_known_cause(program: str, output: str, target: Path) -> None:
    for sign, why, code in _CAUSES:
        if sign.search(output):
            values = {"program": program, "node": platform.node(), "folder": target.parent}
            raise _ImportFailedError(why.format(**values), code)


_CAUSES = (
    (
        re.compile(r"No space left on device|Disk quota exceeded|Wrote only \d+ of \d+ bytes", re.IGNORECASE),
        "the disk is full: an image needs some three times its size, in {folder} and in the folders that "
        "{program} is configured with for its cache and temporary files",
        1,
    ),
    (
        re.compile(
            r"\b40[13] (Unauthorized|Forbidden)|unauthorized:|authentication required|denied:", re.IGNORECASE
        ),
        "the registry refused the login: give {program} credentials for it on {node} "
        "(enroot: ~/.config/enroot/.credentials; apptainer: apptainer registry login)",
        2,
    ),
    (
        re.compile(r"\b404 Not Found|manifest unknown", re.IGNORECASE),
        "the registry has no such image or version: check its name",
        2,
    ),
    (
        re.compile(
            r"Could not resolve host|Connection (refused|timed out|reset)|Failed to connect|no such host|"
            r"i/o timeout",
            re.IGNORECASE,
        ),
        "the registry could not be reached from {node}: is there a way to it from there?",
        1,
    ),
    (
        re.compile(r"Command not found: "),
        "{program} lacks a program that it needs on {node}: see the lines above",
        2,
    ),
)
"""Causes by the programs' error messages, with the exit code: another try can help (1) or not (2)."""


# --- records -------------------------------------------------------------------------------------------


def _described(path: Path, wanted: _Import, more: dict[str, Any]) -> dict[str, Any]:
    status = path.stat()
    return {
        "image": wanted.image,
        "source": wanted.source,
        "sha256": _sha256(path),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "imported_at": time.time(),
        "imported_on": platform.node(),
        **more,
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_record(target: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(record_path(target).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record if record.keys() >= _RECORDED else None


def _write_record(target: Path, record: dict[str, Any]) -> None:
    write_whole(record_path(target), json.dumps(record, indent=2))


if __name__ == "__main__":
    sys.exit(main())
