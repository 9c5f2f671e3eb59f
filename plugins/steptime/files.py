"""Write files atomically: programs that read a file meanwhile never see a half-written one."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file atomically (temporary name, fsync, rename): readers see the old content or the new.

    The folder is created. The file never has more permissions than `mode`, not even for a moment.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
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
