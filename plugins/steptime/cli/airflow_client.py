"""The Airflow that commands ask: the one of `steptime up`, or one that is named."""

import os
import sys
from typing import Annotated

import typer

from steptime.errors import SystemFailure, UserError
from steptime.service.rest import AirflowClient, check_address

_PASSWORD = "STEPTIME_AIRFLOW_PASSWORD"  # noqa: S105 (the name of the variable)

Url = Annotated[
    str | None,
    typer.Option(envvar="STEPTIME_AIRFLOW_URL", help="Another Airflow than that of 'steptime up'."),
]
User = Annotated[
    str | None,
    typer.Option(envvar="STEPTIME_AIRFLOW_USER", help=f"User there; the password comes from {_PASSWORD}."),
]

DAG_PATIENCE_S = 30.0
"""For a DAG of a known workload: an Airflow that has just started reads its files one after the other."""


def airflow_client(url: str | None, user: str | None) -> AirflowClient:
    """Return a client of the named Airflow, or of that of `steptime up`.

    A password is never taken from the command line.
    """
    if url is None:
        from steptime.service.processes import running, why_not_running

        service = running()
        if service is None:
            raise SystemFailure(f"{why_not_running()}, or name one with --url")
        return service.client()
    check_address(url)
    if user is None:
        raise UserError("--url needs a user: name one with --user or STEPTIME_AIRFLOW_USER")
    password = os.environ.get(_PASSWORD)
    if password is None and sys.stdin.isatty():
        password = typer.prompt(f"password of '{user}'", hide_input=True, err=True)
    if password is None:
        raise UserError(f"the password of '{user}' is missing: set {_PASSWORD}")
    return AirflowClient(url, user, password)
