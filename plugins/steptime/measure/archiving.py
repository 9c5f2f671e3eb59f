"""Write results with their records, logs and config as one file:

manifest.json       the version of steptime, and when the archive was made
runs/000001.json    a run: its plan, record, steps, and whether its step time was accepted as a baseline
logs/000001/        the run's log and what is beside it, 2.25 GiB a file, without checkpoints and profiles
config/             the YAML files of the config folder

`steptime results import` reads it.
"""

import io
import json
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from steptime import __version__, settings
from steptime.errors import UserError, one_line
from steptime.files import MOST_LOG_BYTES
from steptime.measure.importing import LOGS, MANIFEST, RUNS, ArchivedRun
from steptime.measure.llmb import llmb_files
from steptime.measure.run_files import list_files
from steptime.store.judgement_queries import accepted_level
from steptime.store.run_queries import Store

SUFFIX = ".tar.zst"
_LEVEL = 9  # of zstd
_CONFIG = "config"


def check_name(file: Path, option: str) -> None:
    """Raise UserError unless the file has the suffix of an archive, its folder exists, and it does not."""
    if not file.name.endswith(SUFFIX) or not file.parent.is_dir():
        raise UserError(
            f"{option} '{one_line(file)}' is unusable: name a file like results{SUFFIX} in an existing "
            "folder."
        )
    if file.exists():
        raise _exists(file)


def _exists(file: Path) -> UserError:
    return UserError(f"'{one_line(file)}' exists already: name another file, or remove it.")


class ArchiveContent(NamedTuple):
    """How many runs were selected for an archive, and how many of their logs it has."""

    runs: int
    logs: int
    """Number of runs whose log this machine has."""


def write_llmb_archive(store: Store, rows: Iterable[Mapping[str, Any]], file: Path) -> ArchiveContent:
    """Write a new archive as NVIDIA's `llmb-run archive` does: each run's log and its configuration.

    Runs whose log this machine lacks are left out. Raises UserError if the file exists.
    """
    rows = list(rows)
    records = store.records([row["job_name"] for row in rows])
    root = time.strftime("llmb-archive-%Y%m%dT%H%M%SZ", time.gmtime())
    logs = 0
    with _new_archive(file) as archive:
        top = tarfile.TarInfo(f"{root}/")
        top.type, top.mode, top.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
        archive.addfile(top)
        for row in rows:
            if (files := llmb_files(row, json.loads(records[row["job_name"]]))) is None:
                continue
            logs += 1
            _add(archive, f"{root}/{files.config_name}", files.config)
            archive.add(files.log, f"{root}/{files.log_name}", filter=_nobodys)
    return ArchiveContent(len(rows), logs)


def write_archive(store: Store, rows: Iterable[Mapping[str, Any]], file: Path) -> ArchiveContent:
    """Write runs, their logs and the config to a new archive. Raises UserError if the file exists."""
    runs = logs = 0
    with _new_archive(file) as archive:
        _add(archive, MANIFEST, json.dumps({"steptime": __version__, "made_at": time.time()}))
        for runs, row in enumerate(rows, 1):
            number, name = f"{runs:06}", row["job_name"]
            run = ArchivedRun.model_validate(
                {"result": store.measured(name), "accepted": accepted_level(store, name)}
            )
            _add(archive, f"{RUNS}/{number}.json", run.model_dump_json())
            files = list_files(row)
            logs += bool(files)
            for path in files:
                if path.stat().st_size <= MOST_LOG_BYTES:  # an import would refuse it
                    archive.add(path, f"{LOGS}/{number}/{path.name}", filter=_nobodys)
        for name, path in settings.config_files().items():
            if path.stat().st_size <= MOST_LOG_BYTES:
                archive.add(path, f"{_CONFIG}/{name}", filter=_nobodys)
    return ArchiveContent(runs, logs)


@contextmanager
def _new_archive(file: Path) -> Iterator[tarfile.TarFile]:
    """Open a new archive, and remove it if it is not completed. Raises UserError if the file exists."""
    packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    try:
        stream = file.open("xb")
    except FileExistsError:
        raise _exists(file) from None
    try:
        with (
            stream,
            packer.stream_writer(stream) as packed,
            tarfile.open(fileobj=packed, mode="w|") as archive,
        ):
            yield archive
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _add(archive: tarfile.TarFile, name: str, content: str) -> None:
    data = content.encode()
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(data), int(time.time())
    archive.addfile(member, io.BytesIO(data))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove this machine's user and group from an archive entry, and return the entry."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
