"""Reading the training log of a run, whole, in one pass and in constant memory."""

import codecs
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from isal import isal_zlib

from steptime.errors import UserError
from steptime.logs.assembly import Assembly
from steptime.logs.events import LogEvents
from steptime.logs.models import TrainingLog
from steptime.logs.shapes import StepsPrinted, label_of

_PIECE_BYTES = 1 << 17
_LEAST_PACKED_BYTES, _MOST_PACKED_BYTES = 1 << 6, 1 << 14
_DATE = re.compile(rb"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # which begins with that of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_UNPACKERS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: isal_zlib.decompressobj(31),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def read_log(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    max_steps: int | None = None,
    first_step: int = 0,
    gpu_type: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> TrainingLog:
    """Read the log of one run, or its logs in order if the job was requeued.

    `.gz` and `.zst` are unpacked; UTF-16 is read like UTF-8.

    `max_steps`, `first_step` and `gpu_type` are those of the planned run (`Run`); without `max_steps` the log
    itself shows whether training is complete, by the rule in docs/logs.md. `on_bytes` is called with the
    bytes read since its last call. Raises UserError if a file cannot be read; whatever its content is becomes
    problems in the result.
    """
    files = [Path(paths)] if isinstance(paths, str | PathLike) else [Path(path) for path in paths]
    if not files:
        raise UserError("no log to read: name at least one file")
    assembly = Assembly()
    for file in files:
        assembly.read(str(file), _pieces(file, on_bytes))
    return assembly.result(max_steps=max_steps, first_step=first_step, gpu_type=gpu_type)


def has_steps(file: Path) -> bool:
    """Return whether a file has a training step, as far as it can be read."""
    events = LogEvents()
    try:
        return any(
            isinstance(event, StepsPrinted) for piece in _pieces(file, None) for event in events.feed(piece)
        ) or any(isinstance(event, StepsPrinted) for event in events.finish())
    except (UserError, EOFError):
        return False


class Glance(NamedTuple):
    """Who wrote a log, and when."""

    ranks: set[bytes]
    """Labels of ranks before its lines."""
    dates: list[bytes]
    """As they are printed, `2026-05-12 10:01:00`, sorted."""


def glance(file: Path) -> Glance:
    """Look for ranks and dates at the beginning and at the end of a log. Raises UserError."""
    first, last = b"", b""
    with suppress(EOFError):
        for piece in _pieces(file, None):
            first, last = first or piece, (last + piece)[-_PIECE_BYTES:]
    text = first if first == last else first + b"\n" + last
    ranks = {label for line in text.splitlines() if (label := label_of(line)) is not None}
    return Glance(ranks, sorted(date.replace(b"T", b" ") for date in _DATE.findall(text)))


def _pieces(file: Path, on_bytes: Callable[[int], None] | None) -> Iterator[bytes]:
    decode: Callable[[bytes], bytes] | None = None
    try:
        begins = True
        for piece in filter(None, _unpacked(file)):
            if begins:
                begins, decode = False, _decoder(piece)
            yield piece if decode is None else decode(piece)
            if on_bytes is not None:
                on_bytes(len(piece))
    except OSError as error:
        raise UserError(f"the log '{file}' cannot be read: {error.strerror or error}") from error


def _decoder(first: bytes) -> Callable[[bytes], bytes] | None:
    """How to make UTF-8 of a log that begins with these bytes; None if it is no UTF-16 or UTF-32.

    Windows' PowerShell writes UTF-16, with a byte order mark or without.
    """
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if first.startswith(mark)), None)
    begin = first[: 2 * _LEAST_PACKED_BYTES]
    if encoding is None and len(begin) > 1 and 0 in begin:
        high, low = begin[1::2], begin[::2]
        if not any(high) and all(low):
            encoding = "utf-16-le"
        elif not any(low) and all(high):
            encoding = "utf-16-be"
    if encoding is None:
        return None
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    return lambda piece: decoder.decode(piece).encode(errors="replace")


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
