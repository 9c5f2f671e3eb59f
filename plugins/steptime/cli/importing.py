"""`steptime results import`: add runs that were made elsewhere to the metrics store."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.clusters.config import load_cluster
from steptime.errors import UserError, one_line
from steptime.judging.incident_updates import update_incidents
from steptime.judging.judgements import store_imported
from steptime.measure.importing import Import, ImportOptions, RefusedImport, find_imports
from steptime.measure.quality import validate
from steptime.measure.unpacking import unpack
from steptime.recipes.cluster_files import list_clusters
from steptime.recipes.models import RUN_FILE
from steptime.settings import home, imported_dir
from steptime.store.run_models import Result, Verdict
from steptime.store.run_queries import Store

EXAMPLES = """
[bold]Examples[/bold]

steptime results import llmb-archive_26.08.00_20261101T120000Z.tar.zst --cluster mycluster

steptime results import /lustre/llmb/workloads --cluster mycluster --not-judged

steptime results import train.log --cluster mycluster --workload llama3.1 --size 70b --dtype fp8 --gpus 64

steptime results import results.tar.zst

[bold]Exit codes[/bold]

0 every run is in the store, valid or rejected; 1 some cannot be imported, or there is nothing at the path.
"""


def import_results(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="An archive, a folder with logs, or a log.")],
    *,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Cluster that the runs were made on: one of yours, to extend its history, or any other "
            "name. By default the one in an archive of steptime, or in the run.json beside a log.",
            show_default=False,
        ),
    ] = None,
    judged: Annotated[
        bool,
        typer.Option(
            "--judged/--not-judged",
            help="Whether later runs are judged by the imported ones. Otherwise these are only shown.",
        ),
    ] = True,
    gpu_type: Annotated[
        str | None,
        typer.Option(
            help="Type of GPU, of logs that do not show it; by default the cluster's.", show_default=False
        ),
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Recipe of logs that do not show it.")] = None,
    size: Annotated[str | None, typer.Option(help="Model size, of logs that do not show it.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Number format, of logs that do not show it.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs, of logs that do not show it.")] = None,
) -> None:
    """Read runs that were made elsewhere into the store, check them like your own, and judge their series.

    PATH is an archive of NVIDIA's 'llmb-run archive' or of 'steptime archive', a folder with experiments of
    any release of NVIDIA's recipes, or logs. A log's recipe is taken from its run.json, its
    llmb-config_*.yaml or the name of its experiment. A run that is in the store already stays as it is. Logs
    are copied to STEPTIME_HOME/imported.
    """
    if gpu_type is None and cluster in list_clusters():
        gpu_type = load_cluster(cluster).gpu_type
    named = {"workload": workload, "size": size, "dtype": dtype, "gpus": None if gpus is None else str(gpus)}
    recipe = {name: value for name, value in named.items() if value is not None}
    if recipe and workload is None:
        raise UserError(f"--{next(iter(recipe))} names a recipe only together with --workload: add it.")
    if not path.exists():
        raise UserError(f"there is nothing at '{one_line(path)}': name an archive, a folder or a log.")
    options = ImportOptions(path.absolute().name, cluster, gpu_type, recipe, judged)
    store, states, refused = Store(), Counter[str](), list[RefusedImport]()
    home().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home(), prefix=".import.") as scratch:
        source = path
        if path.name.endswith(".tar.zst"):
            source = Path(scratch) / "files"
            unpack(path, source)

        def new() -> Iterator[tuple[Result, Verdict, Mapping[str, Any] | None]]:
            for found_run in find_imports(source, options):
                if isinstance(found_run, RefusedImport):
                    refused.append(found_run)
                elif _is_in(store, found_run):
                    states["there already"] += 1
                else:
                    checked = _checked(found_run)
                    states["valid" if checked[1].valid else "rejected"] += 1
                    yield checked

        try:
            store_imported(store, new())
        except UserError as error:  # may name the unpacked copy
            raise UserError(str(error).replace(str(source), str(path))) from None
    if states["valid"]:
        update_incidents(store)
    counts = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items(), reverse=True))
    typer.echo(f"imported from {options.origin}: {counts or 'no run'}")
    for found_run in refused:
        typer.echo(f"{one_line(found_run.name)}: not imported: {found_run.reason.rstrip('.')}.", err=True)
    if refused:
        raise typer.Exit(1)


def _is_in(store: Store, found_run: Import) -> bool:
    if store.count(include_rejected=True, job_name=found_run.result.job.name):
        return True
    folder = found_run.log.absolute().parent
    return (folder / RUN_FILE).is_file() and store.has_run_of(folder)


def _checked(found_run: Import) -> tuple[Result, Verdict, Mapping[str, Any] | None]:
    """Check a run and copy its files; return it, its verdict, and its acceptance as a baseline, if any."""
    result = found_run.result
    verdict = validate(
        result.run,
        result.status,
        result.log,
        result.measurement,
        earlier_attempts=found_run.earlier_attempts,
        origin=result.submitted.provenance.origin,
    )
    folder = imported_dir() / result.job.name
    folder.mkdir(parents=True, exist_ok=True)
    for file in found_run.files:
        shutil.copy(file, folder / (Path(result.log.path) if file == found_run.log else file).name)
    return result, verdict, None if found_run.accepted is None else found_run.accepted.model_dump()
