"""Reading the training log of a run, whole, in one pass and in constant memory."""

import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from steptime.errors import UserError
from steptime.logs.assembly import Assembly
from steptime.logs.models import TrainingLog

_CHUNK_BYTES = 1 << 18


def read_log(
    paths: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    max_steps: int | None = None,
    first_step: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> TrainingLog:
    """Read the log of one run, or its logs in order if the job was requeued; `.gz` is unpacked.

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
        assembly.begin(str(file))
        try:
            with gzip.open(file) if file.suffix == ".gz" else io.FileIO(file) as stream:
                # At most one read below: what an archive holds before its cut is not lost.
                read = stream.read1 if isinstance(stream, gzip.GzipFile) else stream.read
                while chunk := read(_CHUNK_BYTES):
                    assembly.feed(chunk)
                    if on_bytes is not None:
                        on_bytes(len(chunk))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            assembly.remark("broken_archive", f"the compressed log '{file}' is cut or damaged: {error}")
        except OSError as error:
            raise UserError(f"the log '{file}' cannot be read: {error.strerror or error}") from error
        assembly.end()
    return assembly.result(max_steps=max_steps, first_step=first_step)
