"""The files of a run on this machine: its log, and the files beside it."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from steptime import settings
from steptime.files import MOST_LOG_BYTES, open_regular

_READ_BY_PEOPLE = (".out", ".gz", ".json", ".jsonl", ".sh", ".txt", ".log", ".yaml")


def list_files(row: Mapping[str, Any]) -> list[Path]:
    """Return a run's log and the readable files beside it, by name; empty if this machine lacks the log.

    For an imported run, only its own folder is searched, because the paths in its row are not trusted.
    """
    log = PurePosixPath(row["log_path"])
    if row["origin"] is None:
        folders = [settings.collected_logs_dir() / row["cluster"] / row["job_name"], Path(log.parent)]
    else:
        folders = [settings.imported_dir() / row["job_name"]]
    folder = next((candidate for candidate in folders if (candidate / log.name).is_file()), None)
    if folder is None:
        return []
    return [
        path for path in regular(folder.iterdir()) if path.suffix in _READ_BY_PEOPLE or path.name == log.name
    ]


def regular(paths: Iterable[Path]) -> list[Path]:
    """Return the regular files among these paths, sorted, without symbolic links."""
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def find_log(row: Mapping[str, Any]) -> Path | None:
    """Return the path of a run's log; None if this machine does not have it."""
    name = PurePosixPath(row["log_path"]).name
    return next((file for file in list_files(row) if file.name == name), None)


def log_sha256(row: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of a run's log; None if this machine does not have it, or only too large a file."""
    log = find_log(row)
    if log is None or log.stat().st_size > MOST_LOG_BYTES:
        return None
    with open_regular(log) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
