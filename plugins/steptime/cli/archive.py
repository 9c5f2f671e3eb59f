"""`steptime archive`: results with their records, logs and config as one file, and back.

manifest.json       what it is, and of which revision of the store
runs/000001.json    the rows of a run in each table
logs/000001/        the files beside its log that people read, without checkpoints and profiles
config/             the YAML files as they were
"""

import io
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer
import zstandard

from steptime import __version__, settings
from steptime.cli.selecting import RunFilters, require_results, takes_selection
from steptime.cli.usage import Commands
from steptime.errors import UserError, shown
from steptime.results.database import REVISION, insert, read_connection, write_transaction
from steptime.results.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

EXAMPLES = """
[bold]Examples[/bold]

steptime archive -o results.tar.zst

steptime archive --workload llama3.1 --cluster mycluster -o llama.tar.zst

STEPTIME_STORE_URL=sqlite:////srv/steptime/old.db steptime archive restore results.tar.zst
"""

RESTORE_EXAMPLES = """
[bold]Examples[/bold]

steptime archive restore results.tar.zst

steptime archive restore results.tar.zst --into /srv/steptime/2026
"""


app = typer.Typer()
group = typer.Typer(cls=Commands)
SUFFIX = ".tar.zst"
VERSION = 1
"""Of the archive's own form."""
_LEVEL = 9  # of zstd
_AT_ONCE = 1 << 16
_MANIFEST, _RUNS, _LOGS, _CONFIG = "manifest.json", "runs", "logs", "config"
_READ_BY_PEOPLE = (".out", ".gz", ".json", ".jsonl", ".sh", ".txt", ".log", ".yaml")


app.add_typer(group, name="archive")


@group.callback(invoke_without_command=True, epilog=EXAMPLES)
@takes_selection
def archive(
    context: typer.Context,
    *,
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file, which must not be there yet.", metavar="FILE.tar.zst"),
    ] = None,
    selection: RunFilters,
) -> None:
    """Write results to one file: with steps, checks, records, judgements, logs and config.

    Rejected runs are in it, too; checkpoints and profiles are not. Logs are in it if this machine has them:
    those of its own clusters, and copies of others.
    """
    if context.invoked_subcommand:
        return
    from steptime.cli.archive import SUFFIX, write_archive
    from steptime.results.store import Store

    if to is None or not to.name.endswith(SUFFIX) or not to.parent.is_dir():
        named = "" if to is None else f", not '{shown(to)}'"
        raise UserError(f"name the file with -o, as results{SUFFIX} in a folder that is there{named}.")
    store = Store()
    require_results(store, "archive")
    made = write_archive(store, selection.rows(store, include_rejected=True), to)
    without = f"; of {made.runs - made.logs} this machine has no log" if made.runs > made.logs else ""
    typer.echo(f"archived: {_runs(made.runs)}, {to.stat().st_size / 1e3:,.0f} kB in {to}{without}")


@group.command(name="restore", epilog=RESTORE_EXAMPLES)
def restore_archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An archive that 'steptime archive' made.")],
    *,
    into: Annotated[
        Path | None,
        typer.Option(help="New folder for logs and config.", show_default="STEPTIME_HOME/restored/NAME"),
    ] = None,
) -> None:
    """Read an archive into the store: all of its runs that are not there yet, or none if it is damaged.

    A run that is there stays as it is. Logs and config go into a folder of their own, never over those that
    are in use.
    """
    from steptime.cli.archive import restore
    from steptime.judging.judgements import judge_all
    from steptime.results.store import Store
    from steptime.settings import home

    store = Store()
    found = restore(store, file, into or home() / "restored" / file.name.partition(".tar.")[0])
    judge_all(store)
    typer.echo(f"restored: {_runs(len(found.new))}; logs and config are in {found.folder}")
    if found.present:
        typer.echo(f"in the store already, and left as it was: {_runs(len(found.present))}")
    if found.different:
        typer.echo(f"the archive has otherwise: {', '.join(found.different)}")


def _runs(number: int) -> str:
    return f"{number:,} run{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Archived:
    """What went into an archive."""

    runs: int
    logs: int
    """Runs whose log this machine has."""


@dataclass(frozen=True)
class Restored:
    """What came out of an archive."""

    folder: Path
    """Its files: logs, config, and the rows as they were."""
    new: tuple[str, ...]
    """Jobs whose runs were not in the store."""
    present: tuple[str, ...]
    """Jobs whose runs were there already, and stayed as they were."""
    different: tuple[str, ...]
    """Those of them that the archive has otherwise."""


def write_archive(store: Store, rows: Iterable[Mapping[str, Any]], file: Path) -> Archived:
    """Put runs of a store into a new file. Raises UserError if the file is there already."""
    runs = logs = 0
    try:
        with _new_archive(file) as archive:
            _add_json(archive, _MANIFEST, _manifest())
            for runs, row in enumerate(rows, 1):
                number = f"{runs:06}"
                _add_json(archive, f"{_RUNS}/{number}.json", _tables(store, row["job_name"]))
                files = _files_of(row)
                logs += bool(files)
                for path in files:
                    archive.add(path, f"{_LOGS}/{number}/{path.name}", filter=_nobodys)
            for path in _regular(settings.config_dir().rglob("*")):
                name = path.relative_to(settings.config_dir())
                archive.add(path, f"{_CONFIG}/{name}", filter=_nobodys)
    except FileExistsError:
        raise UserError(f"'{shown(file)}' is there already: name another file, or remove it.") from None
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    return Archived(runs, logs)


def restore(store: Store, file: Path, folder: Path) -> Restored:
    """Read an archive into a store, all of its runs or none, and its files into a new folder.

    The restored runs are not judged yet. Raises UserError for a file that is no archive or has another
    revision, and if the folder exists.
    """
    if folder.exists():
        raise UserError(f"'{shown(folder)}' is there already: name another with --into, or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        files = Path(scratch) / "files"
        _extract(file, files, Path(scratch) / "archive.tar")
        _check_manifest(file, files)
        try:
            found = _insert_all(store, sorted((files / _RUNS).glob("*.json")))
        except UserError:
            raise
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(f"'{shown(file)}' has a run that cannot be read: {shown(error)}.") from None
        shutil.move(files, folder)
    return Restored(folder, *found)


@contextmanager
def _new_archive(file: Path) -> Iterator[tarfile.TarFile]:
    packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    with (
        file.open("xb") as stream,
        packer.stream_writer(stream) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        yield archive


def _manifest() -> dict[str, Any]:
    return {"archive": VERSION, "revision": REVISION, "steptime": __version__, "made_at": time.time()}


def _children() -> "list[Table]":
    """The tables whose rows belong to a run, without its judgements, which follow from the other runs."""
    from steptime.results.schema import judgements, metadata

    return [table for table in metadata.sorted_tables if "run_id" in table.c and table is not judgements]


def _tables(store: Store, job_name: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a run by table, without the numbers that tie them together in this store."""
    from sqlalchemy import select

    from steptime.results.schema import runs

    with read_connection(store.url) as connection:
        [own] = connection.execute(select(runs).where(runs.c.job_name == job_name)).mappings()
        found = {runs.name: [dict(own)]}
        for table in _children():
            query = select(table).where(table.c.run_id == own["id"]).order_by(*table.primary_key)
            found[table.name] = [dict(row) for row in connection.execute(query).mappings()]
    return {
        name: [{key: value for key, value in row.items() if key not in ("id", "run_id")} for row in rows]
        for name, rows in found.items()
    }


def _files_of(row: Mapping[str, Any]) -> list[Path]:
    """The files beside a run's log that people read; none if this machine has no log of it."""
    log = PurePosixPath(row["log_path"])
    collected = settings.collected_logs_dir() / row["cluster"] / row["job_name"]
    folder = next((one for one in (collected, Path(log.parent)) if (one / log.name).is_file()), None)
    if folder is None:
        return []
    return [path for path in _regular(folder.iterdir()) if path.suffix in _READ_BY_PEOPLE]


def _regular(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def _add_json(archive: tarfile.TarFile, name: str, content: Any) -> None:
    data = json.dumps(content).encode()
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(data), int(time.time())
    archive.addfile(member, io.BytesIO(data))


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A file without the accounts of this machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _extract(file: Path, folder: Path, plain: Path) -> None:
    """Write the files of an archive, none of them outside of the folder, and no links.

    The file is decompressed to `plain` first, because only the checksum at its end shows damage.
    """
    if not file.is_file():
        raise UserError(f"there is no file '{shown(file)}': name an archive that 'steptime archive' made.")
    try:
        _unpack(file, plain)
        with tarfile.open(plain) as archive:
            archive.extractall(folder, filter="data", members=_files_only(archive))
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise UserError(f"'{shown(file)}' cannot be read as an archive: {error}.") from error
    plain.unlink(missing_ok=True)


def _unpack(file: Path, plain: Path) -> None:
    """Raise EOFError for a file that is cut, which zstandard's own readers take for a whole one."""
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    with file.open("rb") as packed, plain.open("wb") as stream:
        while data := packed.read(_AT_ONCE):
            stream.write(unpacker.decompress(data))
    if not unpacker.eof:
        raise EOFError("it is cut")


def _files_only(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        if not member.isfile():
            raise tarfile.ReadError(f"'{shown(member.name)}' in it is no file")
        yield member


def _check_manifest(file: Path, folder: Path) -> None:
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        version, revision = int(manifest["archive"]), str(manifest["revision"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"'{shown(file)}' is no archive of steptime: it has no {_MANIFEST}.") from None
    if (version, revision) != (VERSION, REVISION):
        raise UserError(
            f"'{shown(file)}' was made by steptime {shown(manifest.get('steptime'))} from a store of "
            f"revision {shown(revision)}, and this steptime reads archives of revision {REVISION}: restore "
            "it with the steptime that made it."
        )


def _insert_all(store: Store, files: Sequence[Path]) -> tuple[tuple[str, ...], ...]:
    """Jobs that are new, present, and different, in one transaction."""
    new, present, different = [], [], []
    with write_transaction(store.url) as connection:
        for tables in map(_tables_in, files):
            own = _run_in(tables)
            name = str(own["job_name"])
            kept = _kept(connection, name)
            if kept is None:
                _insert_run(connection, own, tables)
                new.append(name)
            else:
                present.append(name)
                different += [name] if kept != own["content_sha256"] else []
    return tuple(new), tuple(present), tuple(different)


def _tables_in(file: Path) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = json.loads(file.read_bytes())
    return tables


def _run_in(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The row of the run itself, as this store would have it."""
    from steptime.results.schema import runs

    [own] = tables[runs.name]
    return _known(runs, own)


def _kept(connection: "Connection", job_name: str) -> str | None:
    """The checksum of the run that the store has of this job; None if it has none."""
    from sqlalchemy import select

    from steptime.results.schema import runs

    return connection.scalar(select(runs.c.content_sha256).where(runs.c.job_name == job_name))


def _insert_run(
    connection: "Connection", own: Mapping[str, Any], tables: Mapping[str, Sequence[Mapping[str, Any]]]
) -> None:
    from steptime.results.schema import runs

    run_id = connection.scalar(insert(connection.dialect.name, runs).values(own).returning(runs.c.id))
    for table in _children():
        rows = [_known(table, row) | {"run_id": run_id} for row in tables.get(table.name, ())]
        if rows:
            connection.execute(table.insert(), rows)


def _known(table: "Table", row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row of an archive; raises KeyError if one is missing."""
    return {column.name: row[column.name] for column in table.c if column.name not in ("id", "run_id")}
