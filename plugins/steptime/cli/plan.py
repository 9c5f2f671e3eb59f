"""`steptime plan`: the runs that `steptime run` would start, and what they cost at most."""

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from steptime.cli.options import takes_plan_request
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format, name_replaced_files, show, with_experts
from steptime.clusters.base import JobSpec, StagedFiles
from steptime.clusters.config import check_permitted, load_cluster
from steptime.clusters.hub import fetch_command, hub_cache
from steptime.clusters.jobscript import job_spec
from steptime.judging.expected_cost import expected_cost
from steptime.pages.plans import memory_sentences, plan_rows, summarize_plan
from steptime.recipes.models import Run
from steptime.recipes.nearest_rules import missing_rules
from steptime.recipes.parameters import count_parameters
from steptime.recipes.planning import Plan, PlanRequest, plan, require_runnable
from steptime.staging.checking import check_plan
from steptime.store.budgets import budget_balances

EXAMPLES = """
[bold]Examples[/bold]

steptime plan llama3.1

steptime plan llama3.1 --size 8b --gpus 8-128

steptime plan llama3.1 --size 405b --proxy --dtype fp8 --gpus 32-128 --repeats 3

steptime plan nemotron4-340b --gpu-type gb200 --gpus 128,256 --scaling strong --format json

steptime plan llama3.1 --checkpoint --show-script
"""

_RUN_COLUMNS = (
    *("label", "tp", "pp", "cp", "ep", "etp", "dp", "vp", "mbs", "gbs", "ga"),
    *("steps", "window", "time_limit", "gpu_hours_max", "gpu_hours_expected", "expected_from"),
)
_LEAST = ("vp", "ga", "mbs", "steps", "window", "etp", "ep", "cp", "pp", "tp", "dp")
"""Columns of a plan that a narrow terminal leaves out, the first of them first; never the cost."""


app = typer.Typer()


@app.command(name="plan", epilog=EXAMPLES)
@takes_plan_request
def _plan(
    request: PlanRequest,
    *,
    show_script: Annotated[
        bool, typer.Option("--show-script", help="Also print the job script of every run.")
    ] = False,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Show the runs that `steptime run` would start, and what they cost at most. Nothing is submitted.

    The exit code is 1 if it would start nothing, with the reason below the plan; but a plan for a type of GPU
    that the cluster does not have is only shown.
    """
    planned = plan(request)
    show_plan(planned, output_format, _jobs(planned) if show_script else (), wide=wide)
    name_replaced_files()


def show_plan(planned: Plan, output_format: Format, jobs: Sequence[JobSpec] = (), *, wide: bool) -> None:
    """Print the runs of a plan, their jobs if given, and what they cost at most in GPU-hours.

    With `wide`, the table keeps all its columns if the terminal is too narrow.

    Raises UserError before printing if the cluster does not permit the plan, and after printing if it could
    not be started or a budget is too small. A plan for GPUs that the cluster does not have is only printed.
    """
    check_permitted(planned.all_runs)
    cost = expected_cost(planned.all_runs)
    rows = plan_rows(planned, cost)
    request, first = planned.request, planned.runs[0].recipe
    typer.echo(summarize_plan(planned), err=output_format is not Format.TABLE)
    typer.echo(cost.sentence, err=output_format is not Format.TABLE)
    if output_format is Format.TABLE:
        counted = count_parameters(first.model)
        size = first.size if counted is None else f"{first.size} ({counted} parameters)"
        what = f"{first.workload} {size}, {first.dtype} on {first.gpu_type}, {first.scaling} scaling"
        headings = {"label": "run", "gpu_hours_max": "GPU-hours ≤", "gpu_hours_expected": "expected"}
        show(
            rows,
            output_format,
            called="runs",
            columns=with_experts(_RUN_COLUMNS, rows),
            title=what,
            headings=headings,
            wide=wide,
            least=_LEAST,
        )
        for run, job in zip(planned.all_runs, jobs, strict=False):
            typer.echo(f"# ---- {run.label}: {_beside_script(run, job)}")
            typer.echo(f"# ---- {run.label}: job script ----\n{job.script.rstrip()}\n")
    else:
        if jobs:
            rows = [
                cells | {"script": job.script, "image": run.recipe.image, "log_path": job.log_path}
                for cells, run, job in zip(rows, planned.all_runs, jobs, strict=True)
            ]
        show(rows, output_format, called="runs")
    for sentence in (*memory_sentences(planned), *missing_rules(planned)):
        typer.echo(sentence, err=output_format is not Format.TABLE)
    if request.gpu_type == planned.cluster_gpu_type:
        for line in _from_the_hub(planned):
            typer.echo(line, err=output_format is not Format.TABLE)
        check_plan(planned)
        check_budgets(planned.all_runs, err=output_format is not Format.TABLE)


def _from_the_hub(planned: Plan) -> list[str]:
    """Describe what the runs need from the Hugging Face hub and how to fetch it, one line each."""
    config = load_cluster(planned.request.cluster)
    needed = {
        (repository, cache): None
        for run in planned.all_runs
        if (cache := hub_cache(run, config.environment, config.root)) is not None
        for repository in run.recipe.hub_files
    }
    return [
        f"Ranks load {repository} from {cache} on '{config.name}', offline. To fetch it where the Hugging "
        f"Face hub can be reached: {fetch_command(repository, cache)}"
        for repository, cache in needed
    ]


def check_budgets(runs: Sequence[Run], *, err: bool) -> None:
    """Print the budgets that the runs would use, on stderr if `err`. Raises UserError if one is too small."""
    clusters = {run.cluster for run in runs}
    if all(load_cluster(cluster).gpu_hours_per_month is None for cluster in clusters):
        return
    balances = budget_balances(clusters, runs)
    for balance in balances:
        typer.echo(str(balance), err=err)
    for balance in balances:
        balance.require()


def _beside_script(run: Run, job: JobSpec) -> str:
    """Return what is submitted with a job's script and does not stand in it."""
    image = "" if run.recipe.image is None else f", STAGED_IMAGE {run.recipe.image}"
    return f"time limit {job.time_limit_s} s, log {job.log_path}{image} ----"


def _jobs(planned: Plan) -> list[JobSpec]:
    """Return each run's job, with capitalized placeholders in its script for values from staging.

    A submitted job has another name, which is unique, and therefore another folder and log.

    Raises UserError if the cluster does not have the plan's type of GPU.
    """
    require_runnable(planned)
    config, now = load_cluster(planned.request.cluster), int(time.time())
    jobs = []
    for run in planned.all_runs:
        in_image = run.recipe.image is not None
        staged = StagedFiles(
            python=None if in_image else "STAGED_VENV/bin/python",
            venv_lock_sha256=None,
            trainer_path="STAGED_TRAINER",
            trainer_sha256="",
            image_path="STAGED_IMAGE" if in_image else None,
        )
        jobs.append(job_spec(run, staged, config, identity=f"plan/{run.label}", started=now))
    return jobs
