"""`steptime results`: what the metrics store holds, and how to repeat a run."""

import json
import shlex
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli.comparing import (
    ACCEPT_EXAMPLES,
    COMPARE_EXAMPLES,
    accept,
    compare,
    judge,
    show_trend,
)
from steptime.cli.comparing import EXAMPLES as TREND_EXAMPLES
from steptime.cli.goodput import EXAMPLES as GOODPUT_EXAMPLES
from steptime.cli.goodput import show_goodput
from steptime.cli.importing import EXAMPLES as IMPORT_EXAMPLES
from steptime.cli.importing import import_results
from steptime.cli.node_pairs import EXAMPLES as NODES_EXAMPLES
from steptime.cli.node_pairs import show_node_pairs
from steptime.cli.output import (
    FORMAT_OPTION,
    RUN_ARGUMENT,
    WIDE_OPTION,
    Format,
    show,
    show_columns,
    show_json,
    show_table,
)
from steptime.cli.selecting import RunFilters, require_results, takes_selection
from steptime.cli.usage import Commands
from steptime.errors import UserError, one_line
from steptime.files import write_whole
from steptime.judging.missing_cells import find_cause
from steptime.judging.run_findings import (
    RUN_VERDICT_COLUMNS,
    add_verdicts,
    describe_run,
    results_with_verdicts,
)
from steptime.measure.gpu_samples import gpu_samples
from steptime.measure.repeating import describe_repeat
from steptime.measure.report import choose_columns, export_row, list_notes, sum_up
from steptime.measure.stragglers import rank_times
from steptime.pages.mlflow_export import export_results
from steptime.pages.openmetrics import openmetrics
from steptime.store.columns import COLUMNS
from steptime.store.run_queries import Store

EXAMPLES = """
[bold]Examples[/bold]

steptime results

steptime results --workload llama3.1 --size tiny --since 7d

steptime results --mode checkpoint_save --all --full-names

steptime results --format csv > results.csv

steptime results --cluster mycluster --gpus 64 --state rejected --search NCCL

steptime results show last
"""

SHOW_EXAMPLES = """
[bold]Examples[/bold]

steptime results show last

steptime results show pretrain_llama3.1_tiny_fp32_2-1a2b

steptime results show pretrain_llama3.1_tiny_fp32_2-1a2b --record | jq .run > run.json
"""

METRICS_EXAMPLES = """
[bold]Examples[/bold]

steptime results metrics

steptime results metrics -o /var/lib/node_exporter/textfile/steptime.prom
"""

MLFLOW_EXAMPLES = """
[bold]Examples[/bold]

steptime results mlflow --tracking-uri http://mlflow.example:5000 --since 7d

MLFLOW_TRACKING_URI=http://mlflow.example:5000 steptime results mlflow --experiment weekly --cluster mycluster
"""

_NO_RESULTS = "There are no results yet. Make the first: 'steptime up', then 'steptime run llama3.1 --wait'."
_NEWEST = 200
"""Runs that a table lists by default; a file for programs has all."""
_PARALLELISM = ("tensor", "pipeline", "context", "data", "expert")


app = typer.Typer()
group = typer.Typer(cls=Commands)
app.add_typer(group, name="results")


@group.callback(invoke_without_command=True, epilog=EXAMPLES)
@takes_selection
def results(
    context: typer.Context,
    *,
    selection: RunFilters,
    everything: Annotated[bool, typer.Option("--all", help="Rejected runs too, with the reason.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many runs, the latest ones; a table has 200 by default."),
    ] = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    full_names: Annotated[bool, typer.Option("--full-names", help="Name runs by their job.")] = False,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show the results of all valid runs: step time, throughput, MFU, checkpoint times.

    The table shows only the columns by which runs are compared; csv and json have all columns, with the unit
    in each name. 'steptime results columns' describes them.
    """
    if context.invoked_subcommand:
        return
    store = Store()
    require_results(store, "show")
    if not store.count(include_rejected=True):
        show_results([], output_format)
        typer.echo(_NO_RESULTS, err=True)
        return
    if output_format is Format.TABLE:
        shown = _NEWEST if limit is None else limit
        rows = selection.rows(store, include_rejected=everything, limit=shown)
        found = len(rows)
        show_results(rows, output_format, full_names=full_names, wide=wide)
    else:
        found = selection.count(store, include_rejected=everything)
        selected = selection.arguments(store, include_rejected=everything, limit=limit)
        show_results(results_with_verdicts(store, **selected), output_format)
    if not found:
        hint = "" if everything else " --all lists rejected ones too."
        typer.echo(f"No result fits these filters.{hint}", err=True)
    if output_format is Format.TABLE and limit is None and found == _NEWEST:
        matching = selection.count(store, include_rejected=everything)
        if matching > found:
            typer.echo(f"These are the newest {found} of {matching} runs: --limit {matching} lists them all.")


def show_results(
    rows: Iterable[Mapping[str, Any]], output_format: Format, *, full_names: bool = False, wide: bool = False
) -> None:
    """Print runs of the metrics store, and below a table the notes on them.

    A table has job names in place of labels with `full_names`, and all its columns in a narrow terminal if it
    may be `wide`.
    """
    if output_format is not Format.TABLE:
        show_columns(rows, (*COLUMNS, *RUN_VERDICT_COLUMNS), output_format, called="results")
    elif rows := list(rows):
        typer.echo(f"{sum_up(rows).sentence}.")
        columns, title = choose_columns(rows, full_names=full_names)
        show_table(rows, columns, title=title, wide=wide)
        for note in list_notes(rows):
            typer.echo(note)


@group.command(name="show", epilog=SHOW_EXAMPLES)
def show_run(
    run: Annotated[str, RUN_ARGUMENT],
    *,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    record_only: Annotated[bool, typer.Option("--record", help="Only the record.")] = False,
) -> None:
    """Show everything about one run: its checks, and what is needed to repeat it (recipe, versions, script).

    JSON output has everything: the row, the steps, the checks, checkpoint timings and the record. --record
    prints only the record, exactly as it was stored.
    """
    store = Store()
    require_results(store, "show")
    row = store.run_named(run)
    job_name = row["job_name"]
    kept = store.record(job_name)
    if record_only:
        typer.echo(kept["content"], nl=False)
        return
    record, checks = json.loads(kept["content"]), store.checks(job_name)
    judged, parsed = describe_run(store, row), store.parsed_log(job_name)
    if output_format is Format.JSON:
        whole = {
            "result": export_row(add_verdicts(store, [row])[0], (*COLUMNS, *RUN_VERDICT_COLUMNS)),
            "judged": judged and judged._asdict(),
            "steps": store.steps(job_name),
            "checkpoints": store.checkpoints(job_name),
            "checks": checks,
            **parsed,
            "record": record,
            "record_sha256": kept["sha256"],
        }
        show_json(whole)
        return
    cause = find_cause(store, row)
    first = {"failed": cause} if cause else {}
    first |= {"verdict": judged.sentence, "changed": judged.changed} if judged else {}
    times = rank_times(parsed["log"].get("rank_times"))
    first |= {"stragglers": row["stragglers"], "forward pass": times.summary if times else ""}
    samples = gpu_samples(parsed["log"].get("gpu_samples"))
    first |= {"GPU samples": samples.summary if samples else ""}
    facts = first | _facts(row, record) | {"record, sha256": kept["sha256"]}
    headings = {"what": f"{row['label']} · {row['workload']}", "value": job_name}
    listed = [{"what": name, "value": value} for name, value in facts.items() if value]
    show(listed, output_format, called="result", headings=headings)
    if output_format is Format.CSV:
        return
    for check in checks:
        mark = "✓" if check["passed"] else "!" if check["severity"] == "warning" else "✗"
        typer.echo(f"{mark} {check['message']}")
    if excerpt := parsed["log"].get("excerpt"):
        typer.echo(f"\n# ---- log excerpt ----\n{excerpt}")
    repeat = describe_repeat(kept["content"])
    typer.echo(
        f"\nTo repeat it: {repeat['command']}"
        if repeat["command"]
        else "\nToday's recipes no longer plan this run; --record has its plan under run."
    )
    for difference in repeat["differs"]:
        typer.echo(f"The repetition would differ: {difference}")
    if script := record["provenance"]["script"]:
        typer.echo(f"\n# ---- job script ----\n{script.rstrip()}")


group.command(name="compare", epilog=COMPARE_EXAMPLES)(compare)
group.command(name="trend", epilog=TREND_EXAMPLES)(show_trend)
group.command(name="accept", epilog=ACCEPT_EXAMPLES)(accept)
group.command(name="judge")(judge)
group.command(name="goodput", epilog=GOODPUT_EXAMPLES)(show_goodput)
group.command(name="nodes", epilog=NODES_EXAMPLES)(show_node_pairs)
group.command(name="import", epilog=IMPORT_EXAMPLES)(import_results)


@group.command(name="metrics", epilog=METRICS_EXAMPLES)
def export_metrics(
    *,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A file, made or replaced: *.prom in the folder of node_exporter's textfile collector.",
            metavar="FILE.prom",
        ),
    ] = None,
) -> None:
    """Print the newest numbers, verdicts and incidents of all series as OpenMetrics text, for Prometheus.

    The same text is at /steptime/api/metrics of Airflow's API server, for users who have logged in.
    """
    if to is not None and to.is_dir():
        raise UserError(f"-o '{one_line(to)}' is a folder: name a file in it, such as steptime.prom.")
    store = Store()
    require_results(store, "export")
    text = openmetrics(store, time.time())
    if to is None:
        typer.echo(text, nl=False)
    else:
        write_whole(to, text)


@group.command(name="mlflow", epilog=MLFLOW_EXAMPLES)
@takes_selection
def export_to_mlflow(
    *,
    selection: RunFilters,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="Address of the tracking server; by default that of MLFLOW_TRACKING_URI."),
    ] = None,
    experiment: Annotated[str, typer.Option(help="Name of the experiment; made if needed.")] = "steptime",
) -> None:
    """Copy each result to a run in MLflow. If it was exported before, only its verdict is updated.

    MLflow's client comes with steptime's extra 'mlflow', and reads a token from MLFLOW_TRACKING_TOKEN.
    """
    store = Store()
    require_results(store, "export")
    rows = results_with_verdicts(store, **selection.arguments(store))
    new = export_results(rows, experiment, tracking_uri, lambda line: typer.echo(line, err=True))
    exported = selection.count(store)
    typer.echo(f"{exported} results are in the experiment '{experiment}', {new} of them new.")


@group.command(name="columns")
def show_declarations(
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """List what each column of the results means, with its type and its unit."""
    rows = [column.published for column in COLUMNS]
    names = ("name", "kind", "unit", "description")
    shown_ones = names if output_format is Format.TABLE else None
    show(rows, output_format, called="columns", columns=shown_ones, wide=wide)


def _facts(row: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the most important facts about a run, nested values in one line each."""
    provenance, versions = record["provenance"], record["versions"]
    staged, clean, launch = provenance["staged"], provenance["git_clean"], record.get("launch", {})
    tree = {True: "", False: " with uncommitted changes", None: ""}[clean]
    ways = {kind: row[f"{kind}_parallel"] for kind in _PARALLELISM}
    if ways["expert"] == 1:
        del ways["expert"]  # as in every dense model
    parallelism = ", ".join(f"{kind} {size}" for kind, size in ways.items())
    facts = {
        "state": row["state"],
        "window": row["window"],
        **_numbers(row),
        "cluster": f"{row['cluster']}: {', '.join(record['nodes'])}",
        "network": row["network"],
        "GPUs": f"{row['gpus']} {row['gpu_type']}",
        "parallelism": parallelism,
        "batch": f"global {row['global_batch_size']}, micro {row['micro_batch_size']}",
        "steptime": provenance["steptime_version"],
        "commit": provenance["git_commit"] and f"{provenance['git_commit']}{tree}",
        "image": staged["image"] and f"{staged['image']} {staged['image_digest'] or ''}".strip(),
        "image file, sha256": staged.get("image_sha256"),
        "venv lock, sha256": staged["venv_lock_sha256"],
        "trainer, sha256": staged["trainer_sha256"],
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()) or None,
        "ranks bound to a NUMA node": launch.get("numa_bound_ranks") or None,
        "vboost": "set" if launch.get("vboost") else None,
        "node check": _node_check(record.get("node_check")),
        "environment": shlex.join(map("=".join, provenance["environment"].items())) or None,
        "submitted": _local_time(row["submitted_at"]),
        "started": _local_time(row["started_at"]),
        "ended": _local_time(row["ended_at"]),
        "earlier attempts": "; ".join(map(_attempt, record["earlier_attempts"])) or None,
        "Airflow": row["dag_id"] and f"{row['dag_id']}, {row['dag_run_id']}",
        "imported from": row["origin"],
        "log": row["log_path"],
    }
    return {name: value for name, value in facts.items() if value}


def _numbers(row: Mapping[str, Any]) -> dict[str, str]:
    """Return every measured number by its heading, with its unit."""
    known = (column for column in COLUMNS if column.kind == "number" and row[column.name] is not None)
    return {column.heading: f"{row[column.name]:,.6g} {column.unit}".strip() for column in known}


def _node_check(node_check: Mapping[str, Any] | None) -> str | None:
    """Describe the check before the training: faults or lowest TFLOPS by node, and the bandwidth."""
    if node_check is None:
        return None
    by_node = [
        f"{node['node']} {'; '.join(node['faults']) or _rate(node['matmul_tflops'], 'TFLOPS')}"
        for node in node_check["nodes"]
    ]
    together = node_check["all_reduce"]
    return ", ".join(
        [*by_node, *([f"all-reduce {_rate(together['bus_gb_per_s'], 'GB/s')}"] if together else [])]
    )


def _rate(value: float | None, unit: str) -> str:
    return "no fault" if value is None else f"{value:.4g} {unit}"


def _attempt(attempt: Mapping[str, Any]) -> str:
    """Describe an earlier job of the run: its id, how it ended and why."""
    status = attempt["status"]
    reason = f" ({status['reason']})" if status["reason"] else ""
    return f"{attempt['job']['job_id']} {status['state']}{reason}"


def _local_time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M:%S %z}"
