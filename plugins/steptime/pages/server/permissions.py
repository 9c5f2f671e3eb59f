"""What a user of Airflow may read and edit in the metrics store."""

from collections.abc import Callable
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, HTTPException, Request

from steptime.store.run_queries import Store


def _readable(user: GetUserDep) -> Store:
    return Store(dags=get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


Readable = Annotated[Store, Depends(_readable)]
"""The metrics store, restricted to runs that the user may read."""


def _editable(request: Request, user: GetUserDep) -> Callable[[str | None], bool]:
    def may_edit(dag_id: str | None) -> bool:
        if dag_id is None:
            return False
        # The permission that Airflow requires to mark a DAG run as failed.
        check = requires_access_dag("PUT", DagAccessEntity.RUN, param_dag_id=dag_id)
        try:
            check(request, user)
        except HTTPException:
            return False
        return True

    return may_edit


MayEdit = Annotated[Callable[[str | None], bool], Depends(_editable)]
"""A function that returns whether the user may edit runs of a DAG; False for None (runs without a DAG)."""


def require_own_page(request: Request) -> None:
    """Refuse a request that is not JSON, or whose Sec-Fetch-Site names another site (CSRF).

    Another site's page can make a browser send the user's cookie, but not JSON: that needs a preflight
    request, which this server does not allow. Raises HTTPException 415 or 403.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(status_code=415, detail="the content type must be application/json: send JSON")
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise HTTPException(
            status_code=403,
            detail="the request came from another site: only pages of this Airflow may send it",
        )
