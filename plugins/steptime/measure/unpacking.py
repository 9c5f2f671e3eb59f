"""Unpack an archive of unknown origin: no name, link or size in it is trusted."""

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from steptime.errors import UserError, one_line
from steptime.files import MOST_LOG_BYTES, open_regular
from steptime.logs.reader import decompressed, unpack_log

_PACKED_BYTES = 1 << 9
"""Packed bytes read at once: they unpack to at most 16 MiB."""
_ALWAYS_ALLOWED_BYTES = 64 << 20
_MOST_TIMES_LARGER = 200
"""Largest allowed ratio of unpacked to packed size. Logs compress 10 to 20 times; data made to fill a disk
more than 1000 times."""


def unpack(file: Path, folder: Path) -> None:
    """Write the plain files of a `.tar.zst` archive into a new folder; links are skipped.

    Raises UserError if the archive is damaged or too large when unpacked, or has a path outside the folder.
    """
    folder.mkdir(parents=True)
    stream = _Stream(file)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
            for member in archive:
                if member.issparse():
                    raise tarfile.ReadError(
                        f"its file '{one_line(member.name)}' is sparse, so it could unpack to any size"
                    )
                if member.isfile():
                    _write(archive, member, folder)
        while stream.read(1 << 20):
            pass  # damage shows at the end
    except (tarfile.TarError, EOFError) as error:
        raise UserError(f"'{one_line(file)}' cannot be read as an archive: {error}.") from error
    except OSError as error:  # two members of one name, or a name that no file can have
        raise UserError(f"'{one_line(file)}' cannot be unpacked: {error.strerror or error}.") from error


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a plain file of the archive, with its time, below `folder`.

    Done here because tarfile's own filter for untrusted archives came with Python 3.11.4, and Debian 12 has
    3.11.2. As no link is ever written, the name alone decides where the file goes. Raises tarfile.ReadError
    for a name that leads out of `folder`.
    """
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise tarfile.ReadError(f"its file '{one_line(member.name)}' would be outside of it")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if content := archive.extractfile(member):  # None only for what is no plain file
        with content, target.open("xb") as file:
            shutil.copyfileobj(content, file)
    os.utime(target, (member.mtime, member.mtime))


def check_size(log: Path) -> None:
    """Raise UserError for a log that is not a regular file, or too large to be copied.

    That is one of more than MOST_LOG_BYTES, or a packed one that unpacks to more than `allowed_bytes`.
    """
    try:
        with open_regular(log) as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
        if file_bytes > MOST_LOG_BYTES:
            raise UserError(
                f"'{one_line(log)}' has {file_bytes:,} bytes, and at most {MOST_LOG_BYTES:,} of a log are "
                "imported: cut it"
            )
        left, size = allowed_bytes(log), 0
        with suppress(EOFError):  # of a damaged log, what can be read counts
            for piece in unpack_log(log):
                size += len(piece)
                if size > left:
                    raise _too_large(log, left)
    except OSError as error:
        raise UserError(f"the log '{one_line(log)}' cannot be read: {error.strerror or error}") from error


def allowed_bytes(file: Path) -> int:
    """Return the largest allowed unpacked size of a packed file, in bytes."""
    return _ALWAYS_ALLOWED_BYTES + _MOST_TIMES_LARGER * file.stat().st_size


def _too_large(file: Path, allowed: int) -> UserError:
    return UserError(
        f"'{one_line(file)}' has {file.stat().st_size:,} bytes and unpacks to more than {allowed:,}, which "
        "is too much for logs: if you trust it, unpack it yourself and import the folder."
    )


class _Stream:
    """The unpacked bytes of a `.zst` file, in the form that tarfile reads."""

    def __init__(self, file: Path) -> None:
        self._file, self._pieces, self._rest = file, filter(None, _pieces(file)), memoryview(b"")
        self._left = self._allowed = allowed_bytes(file)

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer than `size` only at the end."""
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._left -= len(piece)
            if self._left < 0:
                raise _too_large(self._file, self._allowed)
            self._rest = memoryview(bytes(self._rest) + piece)
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return data


def _pieces(file: Path) -> Iterator[bytes]:
    with open_regular(file) as packed:
        yield from decompressed(packed, ".zst", _PACKED_BYTES)
