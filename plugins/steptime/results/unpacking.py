"""Unpack an archive that anybody may have made: no name, link or size in it is trusted."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import zstandard

from steptime.errors import UserError, shown
from steptime.logs.reader import unpacked

_PACKED_BYTES = 1 << 9
"""Unpacked at once: the format can make 16 MiB of them, but no more."""
_ALWAYS_ALLOWED_BYTES = 64 << 20
_MOST_TIMES_LARGER = 200
"""Logs pack to a tenth or a twentieth; what only exhausts a disk packs to less than a thousandth."""


def unpack(file: Path, folder: Path) -> None:
    """Write the plain files of a `.tar.zst` into a new folder; links are left out.

    Raises UserError for a file that is damaged or too large when unpacked, and for a path outside the folder.
    """
    folder.mkdir(parents=True)
    stream = _Stream(file)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
            for member in archive:
                if member.issparse():
                    raise tarfile.ReadError(f"'{shown(member.name)}' in it is larger than what it holds")
                if member.isfile():
                    archive.extract(member, folder, filter="data")
        while stream.read(1 << 20):
            pass  # damage shows at the end
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise UserError(f"'{shown(file)}' cannot be read as an archive: {error}.") from error
    except OSError as error:  # two members of one name, or a name that no file can have
        raise UserError(f"'{shown(file)}' cannot be unpacked: {error.strerror or error}.") from error


def check_size(log: Path) -> None:
    """Raise UserError for a packed log that is too large when unpacked."""
    left, size = allowed_bytes(log), 0
    for piece in unpacked(log):
        size += len(piece)
        if size > left:
            raise _too_large(log, left)


def allowed_bytes(file: Path) -> int:
    """Return how large a packed file may be when it is unpacked."""
    return _ALWAYS_ALLOWED_BYTES + _MOST_TIMES_LARGER * file.stat().st_size


def _too_large(file: Path, allowed: int) -> UserError:
    return UserError(
        f"'{shown(file)}' has {file.stat().st_size:,} bytes and unpacks to more than {allowed:,}, as no logs "
        "do: unpack it yourself if you trust it, and import the folder."
    )


class _Stream:
    """The unpacked bytes of a `.zst` file, as tarfile reads them."""

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
        found, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return found


def _pieces(file: Path) -> Iterator[bytes]:
    """Raise EOFError for a file that is cut, which zstandard's own readers take for a whole one."""
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    with file.open("rb") as packed:
        while data := packed.read(_PACKED_BYTES):
            yield unpacker.decompress(data)
    if not unpacker.eof:
        raise EOFError("it is cut")
