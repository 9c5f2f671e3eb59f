"""One try of the task `submit` in a process of its own, for a test that kills it.

Arguments: RUN_JSON hang|return.
"""

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from steptime.airflow import installation
from steptime.airflow.dag_builder import training_dag
from steptime.clusters.local.cluster import LocalCluster

run, ending = Path(sys.argv[1]), sys.argv[2]


installation.Variable = SimpleNamespace(keys=lambda prefix: [f"{prefix}1"])

if ending == "hang":
    submit = LocalCluster.submit

    async def submit_and_hang(self: LocalCluster, spec: Any) -> Any:
        await submit(self, spec)
        time.sleep(3600)

    LocalCluster.submit = submit_and_hang

operator = training_dag("llama31", workload="llama3.1").get_task("performance.submit")
operator.run, operator.staged = json.loads(run.read_text()), json.loads(os.environ["STAGED"])
context = {
    "ti": SimpleNamespace(
        dag_id="llama31", run_id="manual", task_id="performance.submit", map_index=0, max_tries=2
    ),
    "dag_run": SimpleNamespace(run_after=datetime(2026, 11, 21, tzinfo=UTC), conf={}),
    "params": {},
}
print(json.dumps(operator.execute(context)))
