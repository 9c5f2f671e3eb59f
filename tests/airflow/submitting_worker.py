"""One try of the task `submit` in a process of its own, for a test that kills it.

Arguments: RUN_JSON STORE_JSON hang|return.
"""

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import TaskStatesResult

from steptime.airflow import installation
from steptime.airflow.dag_builder import training_dag
from steptime.clusters.local.cluster import LocalCluster

run, store, ending = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


class Store:
    """Keeps in a file what Airflow's task state store keeps in its database."""

    def get(self, key: str) -> Any:
        return json.loads(store.read_text()).get(key) if store.exists() else None

    def set(self, key: str, value: Any, *, retention: object) -> None:
        kept = json.loads(store.read_text()) if store.exists() else {}
        store.write_text(json.dumps({**kept, key: value}))


installation.Variable = SimpleNamespace(keys=lambda prefix: [f"{prefix}1"])

if ending == "hang":
    submit = LocalCluster.submit

    async def submit_and_hang(self: LocalCluster, spec: Any) -> Any:
        await submit(self, spec)
        time.sleep(3600)

    LocalCluster.submit = submit_and_hang

task_runner.SUPERVISOR_COMMS = SimpleNamespace(send=lambda _: TaskStatesResult(task_states={}))
operator = training_dag("llama31", workload="llama3.1").get_task("performance.submit")
operator.run, operator.staged = json.loads(run.read_text()), json.loads(os.environ["STAGED"])
context = {
    "ti": SimpleNamespace(dag_id="llama31", run_id="manual", map_index=0, max_tries=2),
    "dag_run": SimpleNamespace(run_after=datetime(2026, 11, 21, tzinfo=UTC), conf={}),
    "params": {},
    "task_state_store": Store(),
}
print(json.dumps(operator.execute(context)))
