"""`steptime cluster`: check that a cluster is as its file says, and write the file of a new cluster."""

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jinja2
import typer

from steptime.cli.output import FORMAT_OPTION, Format, show
from steptime.cli.usage import Commands
from steptime.clusters.checks import CheckOutcome, CheckResult
from steptime.clusters.config import load_cluster
from steptime.clusters.slurm.checks import parse_gres
from steptime.clusters.slurm.survey import Survey, listed_gpu_type, survey
from steptime.errors import SystemFailure, UserError, one_line, unknown_value
from steptime.files import write_whole
from steptime.recipes.cluster_files import cluster_file
from steptime.recipes.gpus import gpu_types
from steptime.service.airflow_connections import airflow_connection
from steptime.staging.cluster_check import check_cluster, runs_to_check

ADD_EXAMPLES = """
[bold]Examples[/bold]

steptime cluster add selene --connection selene

steptime cluster add selene --connection selene --partition batch --work-dir /lustre/steptime --dry-run
"""

CHECK_EXAMPLES = """
[bold]Examples[/bold]

steptime cluster check selene

steptime cluster check selene --workload llama3.1

steptime cluster check selene --format json
"""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*", re.ASCII)
_READ_AS_OTHERS = ("true", "false", "yes", "no", "on", "off", "null", "none")
"""Words that YAML or a reader may take for something other than text."""
_WORK_DIR = "steptime-work"
"""Name of the suggested folder: in a home, `steptime` is often the checkout or an environment."""

app = typer.Typer()
group = typer.Typer(cls=Commands, help="Add a cluster, and check that it can be used.", no_args_is_help=True)
app.add_typer(group, name="cluster")


@group.command(epilog=ADD_EXAMPLES)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the cluster and its file: selene.")],
    *,
    connection: Annotated[
        str | None,
        typer.Option(help="The Airflow connection, of type SSH, to a login node.", show_default="asked for"),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="Partition of every job.", show_default="asked for: the first with GPUs"),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(help="Account of every job.", show_default="asked for: the only one, or Slurm's"),
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option(help="Key of config/gpus.yaml.", show_default="asked for: what sinfo shows")
    ] = None,
    work_dir: Annotated[
        str | None,
        typer.Option(
            help="Folder for experiments and images, on the login node and on every node.",
            show_default=f"asked for: {_WORK_DIR}/ in $SCRATCH, $WORK, $PROJECT or the home",
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(help="What runs images.", show_default="asked for: the first program that works there"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the file.")] = False,
) -> None:
    """Write the file of a Slurm cluster, with comments, from what its login node shows.

    In a terminal, the command asks for each value that no option gives; otherwise it uses the suggested one.
    Nothing is changed on the cluster, and an existing file is never overwritten. For Run:ai see
    docs/reference/clusters.md.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{one_line(name)}' is not a valid name of a cluster: use lowercase letters, digits and '-'."
        )
    path = cluster_file(name)
    if path.exists():
        raise UserError(f"'{path}' exists already: choose another name, or remove it.")
    asked_for = _chosen("connection", connection, name, "Airflow's SSH connection to a login node")
    seen = asyncio.run(survey(asked_for, airflow_connection))
    _describe(seen)
    partitions = tuple(dict.fromkeys(line.name for line in seen.partitions))
    suggested = seen.suggested_partition
    if suggested is None:
        raise SystemFailure(f"Slurm lists no partition for {seen.where}: ask the cluster's administrators.")
    chosen = _chosen("partition", partition, suggested.name, "partition", partitions)
    lines = [line for line in seen.partitions if line.name == chosen]
    of_slurm = next((kind for line in lines if (kind := listed_gpu_type(line)) not in (None, "cpu")), None)
    of_slurm = of_slurm or listed_gpu_type(lines[0])
    gpus = _chosen("gpu-type", gpu_type, of_slurm, "type of GPU", gpu_types())
    values = {
        "name": name,
        "connection": asked_for,
        "partition": chosen,
        "partitions": partitions,
        "account": _account(account, seen),
        "accounts": seen.accounts,
        "gpu_type": gpus,
        "gpus_per_node": None if gpus == "cpu" else _most_gpus(lines),
        "work_dir": _chosen(
            "work-dir", work_dir, f"{seen.folders[0]}/{_WORK_DIR}" if seen.folders else None, "work_dir"
        ),
        "container": _chosen(
            "container",
            container,
            next(iter(seen.containers), "none"),
            "what runs images",
            (*seen.containers, "none") if container is None else (),
        ),
        "containers": seen.containers,
        "python": next(iter(seen.pythons), None),
        "where": seen.where,
    }
    text = _format_file(values)
    if dry_run:
        typer.echo(text, nl=False)
        return
    try:
        write_whole(path, text)
    except OSError as error:
        raise SystemFailure(f"'{path}' cannot be written: {error.strerror}") from error
    typer.echo(f"written: {path}")
    load_cluster(name)
    typer.echo(f"next: steptime cluster check {name}")
    typer.echo(
        "You can use it in runs now; the forms in Airflow suggest it once Airflow has read the DAGs again."
    )


def _describe(seen: Survey) -> None:
    """Print on stderr what the login node shows."""
    listed = ", ".join(
        f"{line.name} ({line.nodes} {line.state}, {'no GPUs' if line.gres == '(null)' else line.gres})"
        for line in seen.partitions
    )
    for sentence in (
        f"logged in as {seen.where}",
        f"partitions: {listed or 'none'}",
        f"accounts: {', '.join(seen.accounts) or 'none in the accounting'}",
        f"containers: {', '.join(seen.containers) or 'none that steptime knows'}",
        f"Python: {', '.join(seen.pythons) or 'none from 3.11 on'}",
    ):
        typer.echo(sentence, err=True)


def _chosen(option: str, given: str | None, suggested: str | None, what: str, choices: Any = ()) -> str:
    """Return an option's value: the given one, else one typed in a terminal, else the suggested one.

    Raises UserError if no value is found, or if there are `choices` and the value is not one of them.
    """
    if given is None and sys.stdin.isatty():
        return _typed(option, suggested, what, choices)
    value = suggested if given is None else given
    if value is None:
        raise UserError(f"{what} could not be determined on the login node: name it with --{option}.")
    if choices and value not in choices:
        raise unknown_value(option, value, choices)
    return value


def _typed(option: str, suggested: str | None, what: str, choices: Any) -> str:
    """Return the value that a person types, or accepts; ask again, with the reason, if it is none."""
    listed = f" ({', '.join(choices)})" if choices else ""
    while True:
        value: str = typer.prompt(
            f"{what}{listed}", default=suggested or "", show_default=bool(suggested), err=True
        )
        if not value:
            typer.echo(f"{what}: the login node does not show it, so it has to be typed", err=True)
        elif choices and value not in choices:
            typer.echo(str(unknown_value(option, value, choices)), err=True)
        else:
            return value


def _account(given: str | None, seen: Survey) -> str | None:
    """Return the account for jobs; None if Slurm should choose it."""
    if (given is None and not sys.stdin.isatty()) or not seen.accounts:
        return given or (seen.accounts[0] if len(seen.accounts) == 1 else None)
    return _chosen("account", given, seen.accounts[0], "account", seen.accounts)


def _most_gpus(lines: Sequence[Any]) -> int | None:
    return max((gres[1] for line in lines if (gres := parse_gres(line.gres))), default=None)


def _format_file(values: Mapping[str, Any]) -> str:
    """Return the text of a cluster's file."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("steptime.cli", package_path="."),
        autoescape=False,  # noqa: S701 (YAML, whose values `_yaml` quotes)
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["value"] = _yaml
    return templates.get_template("new_cluster.yaml.j2").render(values)


def _yaml(value: str) -> str:
    """Format text as a YAML scalar, quoted if YAML would read it as something else."""
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _READ_AS_OTHERS
    return value if is_plain or value == "none" else json.dumps(value)


@group.command(epilog=CHECK_EXAMPLES)
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A file of config/clusters.")],
    *,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Check only what this workload needs, including its files on the Hugging Face hub.",
            show_default="what the recipes for the cluster's type of GPU need",
        ),
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
) -> None:
    """Check that a cluster can be used: login, scheduler, GPUs, work_dir, Python, containers, images.

    Each check prints a line: ✓ passed, ✗ failed and what to do, – does not apply and why. Nothing is
    submitted. The exit code is 2 if a check fails.
    """
    config = load_cluster(name)
    runs = runs_to_check(config, workload)

    def report(outcome: CheckOutcome) -> None:
        if output_format is Format.TABLE:
            typer.echo(str(outcome))

    outcomes = asyncio.run(check_cluster(config, airflow_connection, runs, report))
    if output_format is not Format.TABLE:
        show([outcome.model_dump(mode="json") for outcome in outcomes], output_format, called="checks")
    if any(outcome.result is CheckResult.FAILED for outcome in outcomes):
        raise typer.Exit(2)
