"""`steptime recipes import`: workload files from a release of NVIDIA/exemplar-performance."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from steptime.errors import UserError, one_line
from steptime.files import read_limited, write_whole
from steptime.recipes.gpus import gpu_types
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

steptime recipes import ~/exemplar-performance --like vr200=gb300 --only llama3.1
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
    like: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=LISTED",
            help="Also import runs on a GPU type that the release does not list and Megatron-Bridge knows, "
            "with the scales and the image of a listed type: vr200=gb300.",
            show_default=False,
        ),
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
        _add_gpu_types(release, like or ())
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


def _add_gpu_types(release: Release, pairs: Sequence[str]) -> None:
    known, listed = gpu_types(), {gpu_type for source in release.sources for gpu_type in source.images}
    for pair in pairs:
        gpu_type, _, like = pair.partition("=")
        if gpu_type not in known or gpu_type in listed or like not in listed:
            raise UserError(
                f"--like '{one_line(pair)}' is not TYPE=LISTED: TYPE must be a GPU type of config/gpus.yaml "
                f"that {release.tag} does not list, and LISTED one of {', '.join(sorted(listed))}."
            )
        release.sources = [source.also_on(gpu_type, like) for source in release.sources]


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
