"""The files of a run that this machine has: its log, and what lies beside it."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from steptime import settings

_READ_BY_PEOPLE = (".out", ".gz", ".json", ".jsonl", ".sh", ".txt", ".log", ".yaml")


def list_files(row: Mapping[str, Any]) -> list[Path]:
    """Return the files beside a run's log that people read, by name; none if this machine has no log of it.

    Of an imported run only those of its own folder: what else its row says about paths came with it.
    """
    log = PurePosixPath(row["log_path"])
    if row["origin"] is None:
        folders = [settings.collected_logs_dir() / row["cluster"] / row["job_name"], Path(log.parent)]
    else:
        folders = [settings.imported_dir() / row["job_name"]]
    folder = next((one for one in folders if (one / log.name).is_file()), None)
    if folder is None:
        return []
    return [path for path in regular(folder.iterdir()) if path.suffix in _READ_BY_PEOPLE]


def regular(paths: Iterable[Path]) -> list[Path]:
    """Return the regular files among these paths, sorted, without symbolic links."""
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def find_log(row: Mapping[str, Any]) -> Path | None:
    """Return the log of a run; None if this machine does not have it."""
    name = PurePosixPath(row["log_path"]).name
    return next((file for file in list_files(row) if file.name == name), None)


def log_sha256(row: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of a run's log; None if this machine does not have it."""
    log = find_log(row)
    if log is None:
        return None
    with log.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
