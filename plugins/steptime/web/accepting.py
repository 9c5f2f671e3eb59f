"""The one thing that the pages write: that somebody accepts a new level."""

from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import HTTPException, Response
from pydantic import StringConstraints

from steptime.errors import UserError
from steptime.frozen import Frozen
from steptime.judging import judgements
from steptime.web.answers import json_response, row_of
from steptime.web.permissions import MayEdit, Readable


class Acceptance(Frozen):
    """What is accepted, and why."""

    job_name: str
    note: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


def accept(store: Readable, may_edit: MayEdit, user: GetUserDep, acceptance: Acceptance) -> Response:
    """Begin a series anew with the level that a run shows: `{"job_name"}` is the first run of it.

    For users who may edit the runs of the run's DAG; the store keeps their name.
    """
    row = row_of(store, acceptance.job_name)
    if not may_edit(row["dag_id"]):
        whose = (
            f"of the DAG {row['dag_id']}" if row["dag_id"] else "of no DAG: type 'steptime results accept'"
        )
        raise HTTPException(status_code=403, detail=f"you may not edit runs {whose}")
    try:
        first = judgements.accept(store, row["job_name"], note=acceptance.note, accepted_by=user.get_name())
    except UserError as error:
        raise HTTPException(status_code=422, detail=str(error)) from None
    return json_response({"job_name": first})
