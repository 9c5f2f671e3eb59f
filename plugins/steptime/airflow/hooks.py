"""The hook that gives Airflow the connection type `runai` and its connection test; jobs do not use it."""

import asyncio
from typing import Any

from airflow.sdk import BaseHook

from steptime.airflow.connections import as_connection
from steptime.clusters.connections import Connection
from steptime.clusters.runai.client import RunaiClient
from steptime.errors import SystemFailure, UserError

_TEST_PATIENCE_S = 10.0


class RunaiHook(BaseHook):
    """A Run:ai control plane: its address and the application's credentials.

    :param runai_conn_id: the Airflow connection of type runai.
    """

    conn_name_attr = "runai_conn_id"
    default_conn_name = "runai_default"
    conn_type = "runai"
    hook_name = "Run:ai"

    def __init__(self, runai_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.runai_conn_id = runai_conn_id

    def get_conn(self) -> RunaiClient:
        """Return a client of Run:ai's API, for `async with`. Raises UserError for an invalid address."""
        return RunaiClient(self._connection(), patience_s=_TEST_PATIENCE_S)

    def test_connection(self) -> tuple[bool, str]:
        """Log in, and look up the project if there is one; return whether that worked, and a message."""
        try:
            return True, asyncio.run(self._test(str(self._connection().extra.get("project") or "")))
        except (UserError, SystemFailure) as error:
            return False, str(error)

    def _connection(self) -> Connection:
        return as_connection(self.runai_conn_id, self.get_connection(self.runai_conn_id))

    async def _test(self, project: str) -> str:
        async with self.get_conn() as client:
            if not project:
                await client.log_in()
                return f"Run:ai at {client.base_url} gives a token."
            answer = await client.project(project)
            return f"Run:ai at {client.base_url} gives a token and shows project '{project}' ({answer.id})."
