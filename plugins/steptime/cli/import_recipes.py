"""`steptime recipes import`: workload files from a release of NVIDIA/exemplar-performance."""

import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from steptime.errors import UserError
from steptime.files import read_limited, write_whole
from steptime.recipes.importing.release import (
    Release,
    Sandbox,
    UpstreamRecipe,
    read_release,
    unpack_commit,
    unpack_pinned,
)
from steptime.recipes.importing.suite import suites
from steptime.recipes.importing.workload import (
    WRITTEN_BY,
    NotImportable,
    RecordedRun,
    import_workload,
    name_workload,
    refusals,
)
from steptime.settings import config_dir

EXAMPLES = """
[bold]Examples[/bold]

steptime recipes import ~/exemplar-performance --megatron-bridge ~/Megatron-Bridge

steptime recipes import ~/exemplar-performance --tag v26.06.01 --into /tmp/26.06 --only gpt_oss
"""

_TAG = re.compile(rf"{re.escape(WRITTEN_BY)} from \S+ ([^\s,]+)")
"""First line of an imported file, up to the tag of its release."""


def import_recipes(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A checkout of NVIDIA/exemplar-performance.", show_default=False),
    ],
    *,
    megatron_bridge: Annotated[
        Path | None,
        typer.Option(help="A git repository of Megatron-Bridge. Default: beside PATH.", show_default=False),
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(
            help="Tag of the git repository PATH. Default: its files as checked out.", show_default=False
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(help="Folder for the files. Default: config/workloads.", show_default=False)
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Names of upstream's workloads, as gpt_oss.", show_default=False)
    ] = None,
) -> None:
    """Write the workload files of a release of NVIDIA's recipes, from what its launch scripts would submit.

    The scripts run in a sandbox without network. Only files that an import of this or an older release has
    written are replaced.
    Without --only, the release's suites are written, too, as sweeps exemplar-*. What is left out, and why, is
    printed.
    """
    bridge = path.parent / "Megatron-Bridge" if megatron_bridge is None else megatron_bridge
    if not bridge.is_dir():
        raise UserError(
            f"'{bridge}' does not exist: name a git repository of Megatron-Bridge by --megatron-bridge."
        )
    folder = config_dir() / "workloads" if into is None else into
    with tempfile.TemporaryDirectory(prefix="steptime-import-") as name:
        work = Path(name)
        release = read_release(unpack_commit(path, tag, work / "release"))
        sources = [source for source in release.sources if not only or source.name in only]
        if unknown := set(only or ()) - {source.name for source in sources}:
            known = ", ".join(source.name for source in release.sources)
            raise UserError(
                f"{release.tag} has no {', '.join(sorted(unknown))} to import: choose from {known}."
            )
        (work / "bridge").mkdir()
        (work / "shared").mkdir()
        sandbox = Sandbox(release.folder, unpack_pinned(sources, bridge, work / "bridge"), work / "shared")
        folder.mkdir(parents=True, exist_ok=True)
        imported: dict[str, tuple[UpstreamRecipe, list[RecordedRun]]] = {}
        for source in sources:
            target = folder / f"{name_workload(release, source)}.yaml"
            if why := _kept(target, release.tag):
                release.left_out[source.folder] = why
                continue
            try:
                text, rows = import_workload(release, source, sandbox)
            except NotImportable as reason:
                release.left_out[source.folder] = str(reason)
                continue
            write_whole(target, text)
            imported[source.name] = source, rows
            typer.echo(f"{target}: {len(rows)} runs")
            for sentence in refusals(source, rows, text):
                typer.echo(f"  left out: {sentence}")
        for suite, text in suites(release, imported) if not only else ():
            sweeps = folder.parent / "sweeps" if into is None else into
            target = sweeps / f"{suite}.yaml"
            if why := _kept(target, release.tag):
                release.left_out[suite] = why
                continue
            write_whole(target, text)
            typer.echo(f"{target}: a sweep of the published runs")
    _show_left_out(release)


def _kept(target: Path, tag: str) -> str | None:
    """Return why a file is not replaced; None if there is none, or it is an import of no newer release."""
    try:
        text = read_limited(target).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError:  # a FIFO or a folder, for example
        text = ""
    written = _TAG.match(text)
    if written and _numbers(written[1]) <= _numbers(tag):
        return None
    is_of = f"is of {written[1]}, which is newer than {tag}" if written else "is not of an import"
    return f"is not written: {target} {is_of}; move it away to have this one"


def _numbers(tag: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", tag)))


def _show_left_out(release: Release) -> None:
    for source, reason in sorted(release.left_out.items()):
        typer.echo(f"left out: {source} {reason}")
