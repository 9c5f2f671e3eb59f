"""Read files that people or jobs wrote, within bounds, and write files atomically."""

import errno
import os
import stat
import tempfile
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading, also through symbolic links.

    Raises OSError, whose `strerror` is "not a regular file" for a FIFO, socket or device: reading one of
    these may wait or yield data for ever.
    """
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_limited(path: Path, *, at_most: int = 16 << 20) -> bytes:
    """Return the content of a regular file.

    Raises OSError as `open_regular` does, and for a file of more than `at_most` bytes.
    """
    with open_regular(path) as file:
        data = file.read(at_most + 1) if os.fstat(file.fileno()).st_size <= at_most else None
    if data is None or len(data) > at_most:
        raise OSError(errno.EFBIG, f"larger than {at_most >> 20} MiB", str(path))
    return data


LOG_HEAD_BYTES, LOG_TAIL_BYTES = 2 << 30, 256 << 20
"""Most bytes that are read of the beginning and of the end of a log; a log may be written without end."""
MOST_LOG_BYTES = LOG_HEAD_BYTES + LOG_TAIL_BYTES
_LEFT_OUT = b"\n[steptime: %d bytes of the log are left out here]\n"


def left_out_mark(count: int) -> bytes:
    """Return the line that stands in a log's copy for `count` bytes of its middle."""
    return _LEFT_OUT % count


def is_left_out_mark(piece: bytes) -> bool:
    """Return whether a piece of a log begins with a line of `left_out_mark`."""
    before, after = _LEFT_OUT.split(b"%d")
    return piece.startswith(before) and after in piece[:100]


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically (temporary name, fsync, rename): readers see the old content or the new.

    The folder is created. The file never has more permissions than `mode`, not even for a moment. Raises
    OSError with the path, also if a device, FIFO or folder is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    data = content.encode() if isinstance(content, str) else content
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:  # mkstemp made it readable by the owner only
                stream.write(data)
                os.fchmod(stream.fileno(), mode)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:  # not by its temporary name
        raise OSError(error.errno, error.strerror, str(path)) from None
