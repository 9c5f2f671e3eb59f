"""Reading the training log of a run, whole, in one pass and in constant memory."""

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import zstandard
from isal import isal_zlib

from steptime.errors import UserError
from steptime.logs.assembly import Assembly
from steptime.logs.models import TrainingLog

_PIECE_BYTES = 1 << 17
_LEAST_PACKED_BYTES, _MOST_PACKED_BYTES = 1 << 6, 1 << 14
_UNPACKERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: isal_zlib.decompressobj(31),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def read_log(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    max_steps: int | None = None,
    first_step: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> TrainingLog:
    """Read the log of one run, or its logs in order if the job was requeued; `.gz` and `.zst` are unpacked.

    `max_steps` and `first_step` are those of the planned run (`Run`); without `max_steps` the log's own last
    step (`iteration 3/49`) shows whether training was complete. `on_bytes` is called with the bytes read
    since its last call. Raises UserError if a file cannot be read; whatever its content is becomes
    problems in the result.
    """
    files = [Path(paths)] if isinstance(paths, str | PathLike) else [Path(path) for path in paths]
    if not files:
        raise UserError("no log to read: name at least one file")
    assembly = Assembly()
    for file in files:
        assembly.read(str(file), _pieces(file, on_bytes))
    return assembly.result(max_steps=max_steps, first_step=first_step)


def _pieces(file: Path, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    try:
        for piece in _unpacked(file):
            yield piece
            if on_bytes is not None:
                on_bytes(len(piece))
    except OSError as error:
        raise UserError(f"the log '{file}' cannot be read: {error.strerror or error}") from error


def _unpacked(file: Path) -> Iterator[bytes]:
    """The bytes of a log, unpacked; of an archive those before a cut or damage, and then an EOFError."""
    new_unpacker = _UNPACKERS.get(file.suffix)
    with io.FileIO(file) as stream:
        if new_unpacker is None:
            yield from iter(partial(stream.read, _PIECE_BYTES), b"")
            return
        unpacker, size = new_unpacker(), _LEAST_PACKED_BYTES
        while packed := unpacker.unused_data or stream.read(size):
            if unpacker.eof:  # archives may be put together from several
                unpacker = new_unpacker()
            try:
                piece = unpacker.decompress(packed)
            except (isal_zlib.IsalError, zstandard.ZstdError) as error:  # type: ignore[misc]  # isal's stub
                raise EOFError(f"its content is not packed as {file.suffix}") from error
            yield piece
            # Repeated lines pack to a thousandth and less, which should not be unpacked at once.
            size = size // 2 if len(piece) > _PIECE_BYTES else size * 2
            size = max(_LEAST_PACKED_BYTES, min(size, _MOST_PACKED_BYTES))
        if not unpacker.eof:
            raise EOFError("it ends before its end mark")
