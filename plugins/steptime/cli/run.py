"""`steptime run`: trigger a workload's DAG, follow it, and show the results."""

from typing import Annotated, Any

import typer

from steptime import dag_ids
from steptime.cli.following import DAG_PATIENCE_S, Url, User, Wait, airflow_client, explain_failure, follow
from steptime.cli.options import takes_plan_request
from steptime.cli.output import FORMAT_OPTION, WIDE_OPTION, Format
from steptime.cli.plan import check_budgets, show_plan
from steptime.cli.results import show_results
from steptime.cli.usage import complain
from steptime.recipes.planning import Plan, PlanRequest, plan
from steptime.recipes.workloads import workload_name
from steptime.service.rest import AirflowClient, DagRun
from steptime.staging.checking import check_plan
from steptime.store.run_queries import Store

EXAMPLES = """
[bold]Examples[/bold]

steptime run llama3.1 --wait

steptime run llama3.1 --gpus 1,2 --checkpoint --wait --format json

steptime run llama3.1 --gpus 2 --max-steps 50 --window 30:49

steptime run llama3.1 --url http://airflow.example:8080 --user ada
"""


NO_RESULTS = "the store has no results of this run: set STEPTIME_STORE_URL to the store of its Airflow"

app = typer.Typer()


@app.command(epilog=EXAMPLES)
@takes_plan_request
def run(
    request: PlanRequest,
    *,
    wait: Wait = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and start nothing.")] = False,
    url: Url = None,
    user: User = None,
    output_format: Annotated[Format, FORMAT_OPTION] = Format.TABLE,
    wide: Annotated[bool, WIDE_OPTION] = False,
) -> None:
    """Start the planned runs through Airflow.

    The plan is checked first: a value that fits no recipe starts nothing.
    Without --wait the address of the DAG run is printed.
    With --wait the exit code is 0 if every run is valid, and 2 if one failed.
    """
    planned = plan(request)
    if dry_run:
        show_plan(planned, output_format, wide=wide)
        return
    check(planned)
    with airflow_client(url, user) as client:
        dag_run = trigger(client, planned)
        address = client.run_address(dag_run.dag_id, dag_run.dag_run_id)
        if not wait:
            typer.echo(f"run id:  {dag_run.dag_run_id}\naddress: {address}")
            return
        typer.echo(f"following {address}", err=True)
        _, ended_well = wait_for_results(client, dag_run, output_format, of=len(planned.all_runs), wide=wide)
    if not ended_well:
        raise typer.Exit(2)


def check(planned: Plan) -> None:
    """Raise UserError if the cluster or a budget does not allow the planned runs."""
    check_plan(planned)
    check_budgets(planned.all_runs, err=True)


def trigger(client: AirflowClient, planned: Plan) -> DagRun:
    """Start a DAG run for the plan, and return it."""
    # With every default filled in: what was checked here is what runs there.
    conf = planned.request.model_dump(mode="json", exclude={"workload"})
    dag_id = dag_ids.dag_id(workload_name(planned.request.workload))
    return client.trigger(dag_id, conf, patience_s=DAG_PATIENCE_S)


def wait_for_results(
    client: AirflowClient,
    dag_run: DagRun,
    output_format: Format = Format.TABLE,
    *,
    of: int,
    wide: bool,
) -> tuple[list[dict[str, Any]], bool]:
    """Follow a DAG run, then print its results, and the reason if it failed.

    `of` is the number of planned runs. A `wide` table keeps all columns in a narrow terminal.

    Returns the results, and whether the DAG run succeeded with all results valid. Raises SystemFailure on
    Ctrl-C; the runs continue.
    """
    ended = follow(client, dag_run, of=of)
    rows = show_results_of(ended, output_format, wide=wide)
    if ended.state == "failed":
        explain_failure(client, ended)
    all_valid = bool(rows) and all(row["state"] == "valid" for row in rows)
    return rows, all_valid and ended.state == "success"


def show_results_of(
    dag_run: DagRun, output_format: Format = Format.TABLE, *, wide: bool = False
) -> list[dict[str, Any]]:
    """Print the results of the DAG run from the store, and return them."""
    of_run: dict[str, Any] = {"dag_id": dag_run.dag_id, "dag_run_id": dag_run.dag_run_id}
    store = Store()
    rows = store.results(include_rejected=True, in_reading_order=True, **of_run)
    if rows:
        show_results(rows, output_format, wide=wide)
    elif dag_run.state == "success":
        complain(NO_RESULTS)
    return rows
